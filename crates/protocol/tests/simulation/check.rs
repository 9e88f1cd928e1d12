//! The judge: reads a history and returns what must not have happened.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::multiplexer::Limits;
use protocol::time::Moment;

use crate::aggregate::READY_TIMEOUT;
use crate::history::{Fact, History, Home, ID, Kind};
use crate::modern_requests::FIRST;
use crate::run::{LONG_STREAM, limits};

/// What is known about one request of a client.
#[derive(Debug, Default)]
struct Case {
    session: usize,
    /// The backend that it is for, if that is one.
    owner: Option<usize>,
    id: String,
    method: &'static str,
    template: String,
    posted: Moment,
    abandoned: bool,
    endings: Vec<(Moment, String, Option<String>)>,
    executions: Vec<(usize, u32, u64)>,
    answers: Vec<(Moment, String)>,
    too_long: bool,
    translated: bool,
    retry_of: Option<usize>,
    /// How often a modern server asked by its answer.
    asked: usize,
    /// Its modern client left before the server had answered.
    hung_up: Option<Moment>,
    /// How long its server may be silent, if that is limited.
    limit: Option<Duration>,
    /// When it must have ended: its time is over, counted from the last moment that may have
    /// started it anew.
    due: Moment,
    /// The bridge ended it without an answer of its server, which may never stop working on it.
    given_up: bool,
}

impl Case {
    /// Returns whether it is this request, or comes back to it.
    fn is_about(&self, number: usize, post: usize) -> bool {
        number == post || self.retry_of == Some(post)
    }

    fn is_open(&self) -> bool {
        self.endings.is_empty() && !self.given_up
    }
}

#[derive(Debug, Default)]
struct Question {
    post: Option<usize>,
    /// The number of the message that asked.
    seq: Option<u64>,
    /// It was asked while its call rested.
    restless: bool,
    answers: usize,
    withdrawn: bool,
}

/// What messages on their way, and clients that look once a second, may add to a time limit.
const SLACK: Duration = Duration::from_secs(1);

/// A message of a server: from which backend, what kind, about which resource, to how many
/// sessions.
type Written = (usize, Kind, Option<String>, usize);

#[derive(Debug, Default)]
struct Judge {
    cases: BTreeMap<usize, Case>,
    /// Backends and principal of each session.
    homes: BTreeMap<usize, Home>,
    principals: BTreeMap<usize, &'static str>,
    /// The messages of servers about suspended calls.
    restless: BTreeSet<u64>,
    /// The principal that read a log line which belongs to no call.
    loose_logs: BTreeMap<u64, &'static str>,
    epochs_down: BTreeSet<(usize, u32)>,
    /// Servers that hang, by their backend: which, and since when.
    hung: BTreeMap<usize, (u32, Moment)>,
    /// When such a server must have been replaced: a call that was sent to it has timed out.
    replaced_by: BTreeMap<usize, Moment>,
    /// Backends that have asked something: calls may have to wait there, and have not been sent
    /// when they time out.
    inquisitive: BTreeSet<usize>,
    cancels: BTreeSet<(usize, u32, u64)>,
    /// Executions that ended with a question: a modern server keeps nothing that could be
    /// cancelled.
    done: BTreeSet<(usize, u32, u64)>,
    questions: BTreeMap<(usize, u32, u64), Question>,
    /// The question whose message is written next.
    just_asked: Option<(usize, u32, u64)>,
    written: BTreeMap<u64, Written>,
    /// The session of each answer, and the message that it answers, if its client has read one.
    repliers: BTreeMap<u64, (usize, Option<u64>)>,
    /// Sessions, with the backend and its resource.
    subscribed: BTreeSet<(usize, usize, String)>,
    /// Which sessions were subscribed to the resource of an update when its server sent it.
    subscribers: BTreeMap<u64, BTreeSet<usize>>,
    /// The post that each call of a session is.
    numbers: BTreeMap<(usize, u64), usize>,
    closed: BTreeSet<usize>,
    /// Sessions that no server has welcomed.
    refused: BTreeSet<usize>,
    /// Sessions with a record: they bring their subscriptions along when they are opened once more.
    restored: BTreeSet<usize>,
    delivered: BTreeMap<usize, Vec<u64>>,
    /// The last event on each connection, and the last number of a message of each server there.
    places: BTreeMap<usize, (u64, u64)>,
    seqs: BTreeMap<(usize, usize), u64>,
    /// Of each stream, which of the server's messages its events carried, but for questions: those
    /// may have been held back, and show nothing about what else the stream has carried.
    events: BTreeMap<(usize, u64, u64), u64>,
    gaps: BTreeSet<usize>,
    /// Of each stream, the events after which it was read that others are lost.
    marks: BTreeSet<(usize, u64, u64)>,
    /// The last notice of each server, on each GET stream.
    notices: BTreeMap<usize, BTreeMap<usize, u64>>,
    /// The member of an aggregate that each call of a session is for.
    owners: BTreeMap<(usize, u64), usize>,
    /// The members of the aggregate.
    members: Vec<usize>,
    wrongs: Vec<String>,
}

/// Everything that is wrong with a history.
pub(crate) fn check(history: &History) -> Vec<String> {
    let mut judge = Judge::default();
    for (at, fact) in &history.facts {
        judge.check_fact(*at, fact);
    }
    judge.conclude();
    judge.wrongs
}

impl Judge {
    fn wrong(&mut self, at: Moment, what: impl std::fmt::Display) {
        self.wrongs
            .push(format!("{:.3}: {what}", at.elapsed().as_secs_f64()));
    }

    fn check_fact(&mut self, at: Moment, fact: &Fact) {
        match fact {
            Fact::SessionOpened {
                session,
                home,
                principal,
            } => {
                self.homes.insert(*session, home.clone());
                self.principals.insert(*session, principal);
            }
            Fact::SessionClosed { session } => {
                self.closed.insert(*session);
            }
            Fact::GatewayRestarted => {
                let open = self.homes.keys().filter(|session| !self.closed.contains(session));
                self.restored.extend(open);
            }
            Fact::Refused { session } => {
                self.refused.insert(*session);
            }
            Fact::Reopened { session } => {
                self.refused.remove(session);
            }
            Fact::LinkUp { backend, .. } => {
                // A new server knows only what living sessions subscribed to.
                let (closed, refused) = (&self.closed, &self.refused);
                let restored = &self.restored;
                self.subscribed.retain(|(session, at, _)| {
                    let is_refused = refused.contains(session) && !restored.contains(session);
                    let gone = closed.contains(session) || is_refused;
                    !gone || at != backend
                });
            }
            Fact::Numbered { session, post, call } => {
                self.numbers.insert((*session, *call), *post);
            }
            Fact::GivenUp {
                session,
                backend,
                call,
                timed_out,
            } => {
                let post = self.numbers.get(&(*session, *call)).copied();
                let mut posted = None;
                for (of, case) in &mut self.cases {
                    if Some(*of) == post || (*session >= FIRST && case.session == *session) {
                        case.given_up = true;
                        posted = posted.or(Some(case.posted));
                    }
                }
                if let (Some(posted), Some(backend)) = (posted.filter(|_| *timed_out), backend) {
                    self.expect_replacement(at, *backend, posted);
                }
            }
            Fact::Hung { backend, epoch } => {
                self.hung.insert(*backend, (*epoch, at));
            }
            Fact::Posted {
                session,
                post,
                owner,
                id,
                method,
                template,
                translated,
                retry_of,
                limit,
            } => {
                if *method == "resources/subscribe"
                    && !self.refused.contains(session)
                    && let Some(owner) = owner
                    && let Some(uri) = template
                        .split(r#""uri":""#)
                        .nth(1)
                        .and_then(|rest| rest.split('"').next())
                {
                    self.subscribed.insert((*session, *owner, uri.into()));
                }
                let due = at.after(self.first_limit(*session, *owner, limit.unwrap_or_default()));
                self.cases.insert(
                    *post,
                    Case {
                        session: *session,
                        owner: *owner,
                        limit: *limit,
                        due,
                        id: id.clone(),
                        method,
                        template: template.clone(),
                        translated: *translated,
                        retry_of: *retry_of,
                        posted: at,
                        ..Case::default()
                    },
                );
            }
            Fact::HungUp { post } => {
                if let Some(case) = self.cases.get_mut(post) {
                    case.abandoned = true;
                    // In the modern era that cancels the call, whichever of its requests was
                    // attached.
                    if case.session >= FIRST {
                        let root = case.retry_of.unwrap_or(*post);
                        if let Some(case) = self.cases.get_mut(&root) {
                            case.hung_up = (case.answers.is_empty() && !case.too_long).then_some(at);
                        }
                    }
                }
            }
            Fact::Resumed {
                session,
                connection,
                post,
                stream,
                number,
            } => {
                if let Some(case) = post.and_then(|post| self.cases.get_mut(&post)) {
                    case.abandoned = false;
                }
                self.places.insert(*connection, (*stream, *number));
                let read = (*session, *stream, 0)..=(*session, *stream, *number);
                // A client that goes on after a mark has read it, and is owed nothing from before it.
                let before = (*session, *stream, 0)..(*session, *stream, *number);
                let mark = self.marks.range(before).next_back().copied();
                let mut last: BTreeMap<usize, u64> = BTreeMap::new();
                for (event, seq) in self.events.range(read) {
                    let Some((backend, ..)) = self.written.get(seq) else {
                        continue;
                    };
                    self.seqs.insert((*connection, *backend), *seq);
                    if mark.is_none_or(|mark| mark < *event) {
                        last.insert(*backend, *seq);
                    }
                }
                if post.is_none() {
                    self.notices.insert(*connection, last);
                }
            }
            Fact::Listened { connection, .. } => {
                self.notices.insert(*connection, BTreeMap::new());
            }
            Fact::ResumeRefused { post, why, .. } => {
                let unread = post
                    .and_then(|post| self.cases.get(&post))
                    .is_some_and(|case| case.endings.is_empty());
                if why == "Finished" && unread {
                    self.wrong(
                        at,
                        format!("post {post:?} was called finished before its ending was read"),
                    );
                }
            }
            Fact::Executed {
                backend,
                epoch,
                wire,
                post,
                line,
            } => self.executed(at, (*backend, *epoch, *wire), *post, line),
            Fact::Answered {
                backend,
                epoch,
                wire,
                post,
                template,
            } => {
                if template.contains("input_required") {
                    self.done.insert((*backend, *epoch, *wire));
                }
                if let Some(case) = self.cases.get_mut(post) {
                    case.answers.push((at, template.clone()));
                }
                // It may be a task, which is asked about from now on.
                self.extend(at, Duration::ZERO, |number, case| case.is_about(number, *post));
            }
            Fact::Polled { post } => {
                self.extend(at, Duration::ZERO, |number, case| case.is_about(number, *post));
            }
            Fact::AskedByAnswer { post } => {
                if let Some(case) = self.cases.get_mut(post) {
                    case.asked += 1;
                }
            }
            Fact::InputRead { post, nonce } => {
                let owner = self.cases.get(post).map(|case| case.session);
                let replier = self.repliers.get(nonce).map(|(replier, _)| *replier);
                // A modern client answers for a task by another request than the one that began it.
                let same = owner.zip(replier).is_some_and(|(owner, replier)| {
                    owner == replier || (owner >= FIRST && self.is_same_principal(owner, replier))
                });
                if !same {
                    self.wrong(
                        at,
                        format!("what post {post} was asked was answered by another session"),
                    );
                }
            }
            Fact::TooLong { post } => {
                if let Some(case) = self.cases.get_mut(post) {
                    case.too_long = true;
                }
            }
            Fact::CancelRead { backend, epoch, wire } => {
                self.cancels.insert((*backend, *epoch, *wire));
            }
            Fact::ServerWrote {
                backend,
                seq,
                post,
                kind,
                uri,
                attached,
            } => {
                self.written
                    .insert(*seq, (*backend, *kind, uri.clone(), *attached));
                if let (Kind::Updated, Some(uri)) = (kind, uri) {
                    let subscribers = self
                        .subscribed
                        .iter()
                        .filter(|(_, at, what)| at == backend && uri.starts_with(what.as_str()))
                        .map(|(session, ..)| *session);
                    self.subscribers.insert(*seq, subscribers.collect());
                }
                if *kind == Kind::Question {
                    self.inquisitive.insert(*backend);
                    let asked = self.just_asked.take();
                    if let Some(question) = asked.and_then(|key| self.questions.get_mut(&key)) {
                        question.seq = Some(*seq);
                    }
                }
                // Progress names its call, so there is no excuse for it.
                if *kind != Kind::Progress && self.rests(*post) {
                    self.restless.insert(*seq);
                }
                match (kind, post) {
                    (Kind::Progress, Some(post)) => {
                        self.extend(at, Duration::ZERO, |number, case| case.is_about(number, *post));
                    }
                    (Kind::Log, Some(post)) if self.is_certain(*post) => {
                        self.extend(at, Duration::ZERO, |number, case| case.is_about(number, *post));
                    }
                    (Kind::Log, post) => self.extend_related(at, Duration::ZERO, *backend, *post),
                    // Its client may take its time, and the clock of the call that carries it
                    // stands still.
                    (Kind::Question, post) => {
                        self.extend_related(at, limits().question_timeout, *backend, *post);
                    }
                    (Kind::Progress | Kind::ListChanged | Kind::Updated, _) => {}
                }
            }
            Fact::Asked {
                backend,
                epoch,
                question,
                post,
            } => {
                let post = *post;
                let restless = self.rests(post);
                self.just_asked = Some((*backend, *epoch, *question));
                self.questions.insert(
                    (*backend, *epoch, *question),
                    Question {
                        post,
                        restless,
                        ..Question::default()
                    },
                );
            }
            Fact::Withdrew {
                backend,
                epoch,
                question,
            } => {
                if let Some(question) = self.questions.get_mut(&(*backend, *epoch, *question)) {
                    question.withdrawn = true;
                    let post = question.post;
                    self.extend_related(at, Duration::ZERO, *backend, post);
                }
            }
            Fact::AnswerRead {
                backend,
                epoch,
                question,
                nonce,
            } => {
                self.answer_read(at, (*backend, *epoch, *question), *nonce);
            }
            Fact::Replied { session, nonce, seq } => {
                self.repliers.insert(*nonce, (*session, *seq));
            }
            Fact::Owned { session, call, owner } => {
                self.owners.insert((*session, *call), *owner);
            }
            Fact::GivenCall {
                session,
                call,
                backend,
            } => {
                // A member that is alone gets what no list has, and answers in its own words.
                if self.members == [*backend] {
                    self.owners.insert((*session, *call), *backend);
                    self.readdress(*session, *call, *backend);
                }
                self.is_owner(at, (*session, *call), *backend, "was given");
            }
            Fact::GivenCancel {
                session,
                call,
                backend,
            } => self.is_owner(at, (*session, *call), *backend, "was asked to cancel"),
            Fact::Routed {
                session,
                call,
                backend,
            } if self.members != [*backend] => {
                self.is_owner(at, (*session, *call), *backend, "is named in the audit for")
            }
            Fact::Routed { .. } => {}
            Fact::Attributed {
                session,
                seq,
                backend,
            } => {
                let from = self.written.get(seq).map(|(backend, ..)| *backend);
                if from != *backend {
                    self.wrong(
                        at,
                        format!("session {session} read {seq} of member {from:?} as one of {backend:?}"),
                    );
                }
            }
            Fact::Delivered { session, seq } => self.delivered.entry(*session).or_default().push(*seq),
            Fact::ClientRead {
                session,
                connection,
                stream,
                number,
                seq,
                post,
            } => {
                self.check_read(at, *session, *connection, (*stream, *number), *seq, *post);
            }
            Fact::GapRead { session, connection } => {
                self.gaps.insert(*connection);
                if let Some((stream, number)) = self.places.get(connection) {
                    self.marks.insert((*session, *stream, *number));
                }
            }
            Fact::LinkDown { backend, epoch } => {
                self.epochs_down.insert((*backend, *epoch));
                self.hung.remove(backend);
                if self.replaced_by.remove(backend).is_some_and(|by| by < at) {
                    self.wrong(at, format!("backend {backend} was replaced too late"));
                }
            }
            Fact::Ended {
                session,
                post,
                body,
                reason,
            } => {
                // A session that its server has refused is subscribed to nothing, though its client
                // does not know it.
                if reason.as_deref() == Some("session_ended") && !self.restored.contains(session) {
                    self.subscribed.retain(|(subscriber, ..)| subscriber != session);
                }
                self.ended(at, *session, *post, body, reason.as_deref());
                if body.contains("bytes waiting for the server") {
                    self.expect_reading(at, *post);
                }
            }
            Fact::Reloaded { members } => self.members.clone_from(members),
            Fact::Exceeded { what, found, limit } => {
                self.wrong(at, format!("{what}: {found}, limit {limit}"))
            }
            Fact::Left { what, found } => self.wrong(at, format!("left at the end: {found} {what}")),
            Fact::Wrong { what } => self.wrong(at, what),
        }
    }

    /// A server that hangs is replaced after one call that was sent to it and timed out, and a
    /// ping.
    fn expect_replacement(&mut self, at: Moment, backend: usize, posted: Moment) {
        let hangs = self.hung.get(&backend).is_some_and(|(_, since)| posted >= *since);
        if hangs && !self.inquisitive.contains(&backend) {
            let by = at.after(limits().request_timeout + SLACK);
            self.replace_by(backend, by);
        }
    }

    /// A server that hangs is replaced as well if a call found no room in what waits for it, though
    /// a question may be open. A call that was sent before may last as long as any may.
    fn expect_reading(&mut self, at: Moment, post: usize) {
        let Some(case) = self.cases.get(&post) else { return };
        let hangs = |backend: usize| {
            let hung = self.hung.get(&backend);
            hung.is_some_and(|(_, since)| case.posted >= *since)
        };
        if let Some(backend) = case.owner.filter(|owner| hangs(*owner)) {
            let longest = LONG_STREAM * Limits::MAX_EXTENSIONS + limits().question_timeout;
            self.replace_by(backend, at.after(longest + SLACK));
        }
    }

    fn replace_by(&mut self, backend: usize, by: Moment) {
        let replaced_by = self.replaced_by.entry(backend).or_insert(by);
        *replaced_by = by.min(*replaced_by);
    }

    /// A call is for another backend than its name tells, which reads other words.
    fn readdress(&mut self, session: usize, call: u64, backend: usize) {
        let post = self.numbers.get(&(session, call)).copied();
        for (of, case) in &mut self.cases {
            let is_it = Some(*of) == post || (session >= FIRST && case.session == session);
            if is_it && case.owner != Some(backend) {
                case.owner = Some(backend);
                case.translated = true;
            }
        }
    }

    /// A call of a client of an aggregate concerns the member that owns what it names, and no other.
    fn is_owner(&mut self, at: Moment, call: (usize, u64), backend: usize, did: &str) {
        if let Some(owner) = self.owners.get(&call)
            && *owner != backend
        {
            let what = format!("member {backend} {did} call {call:?}, which is for member {owner}");
            self.wrong(at, what);
        }
    }

    /// Returns how long a call may take that was just sent, if its server sends nothing more: it
    /// may wait for a server that starts, and for an answer of its client to what the server wanted
    /// to know before.
    fn first_limit(&self, session: usize, owner: Option<usize>, limit: Duration) -> Duration {
        let is_asked = self.questions.iter().any(|((backend, ..), question)| {
            Some(*backend) == owner && question.post.is_none() && question.answers == 0 && !question.withdrawn
        });
        let wait = match is_asked {
            true => limits().question_timeout + limit,
            false => limit,
        };
        // It may have to become known which members there are.
        let ready = match self.homes.get(&session) {
            Some(Home::Members(_)) => READY_TIMEOUT,
            Some(Home::Backend(_)) | None => Duration::ZERO,
        };
        ready + limits().start_timeout.max(wait) + limit + SLACK
    }

    /// The time of the calls that fit starts anew after this wait.
    fn extend(&mut self, at: Moment, wait: Duration, fits: impl Fn(usize, &Case) -> bool) {
        for (number, case) in &mut self.cases {
            if let Some(limit) = case.limit
                && case.endings.is_empty()
                && fits(*number, case)
            {
                case.due = case.due.max(at.after(wait + limit + SLACK));
            }
        }
    }

    /// The same for all calls that something may be taken to be about: those of the same principal,
    /// or of every caller if it is about no call.
    fn extend_related(&mut self, at: Moment, wait: Duration, backend: usize, post: Option<usize>) {
        let owner = post
            .and_then(|post| self.cases.get(&post))
            .map(|case| case.session);
        let principals = &self.principals;
        let is_related = |case: &Case| {
            case.owner == Some(backend)
                && owner.is_none_or(|owner| principals.get(&owner) == principals.get(&case.session))
        };
        let related: BTreeSet<usize> = self
            .cases
            .iter()
            .filter(|(_, case)| case.limit.is_some() && case.endings.is_empty() && is_related(case))
            .map(|(number, _)| *number)
            .collect();
        self.extend(at, wait, |number, _| related.contains(&number));
    }

    /// Returns whether a message about a call can be taken for no other one's: its client waits for
    /// it, and the bridge knows that it does not rest.
    fn is_certain(&self, post: usize) -> bool {
        self.cases.get(&post).is_some_and(Case::is_open) && !self.rests(Some(post))
    }

    /// At most once, and word for word.
    fn executed(&mut self, at: Moment, place: (usize, u32, u64), post: usize, line: &str) {
        let Some(case) = self.cases.get_mut(&post) else {
            return self.wrong(at, format!("post {post} was executed and never sent"));
        };
        case.executions.push(place);
        // What is for several members is executed by each of them.
        let counted = |executed: &&(usize, u32, u64)| case.owner.is_some() || executed.0 == place.0;
        let times = case.executions.iter().filter(counted).count();
        if let Some(limit) = case.limit {
            case.due = case.due.max(at.after(limit + SLACK));
        }
        let home = match case.owner {
            Some(owner) => owner == place.0,
            None => self
                .homes
                .get(&case.session)
                .is_some_and(|home| home.has(place.0)),
        };
        let expected = case.template.replace(ID, &place.2.to_string());
        let level = case.method == "logging/setLevel";
        let (translated, asked) = (case.translated, case.asked);
        if times > 1 + asked {
            self.wrong(at, format!("post {post} was executed {times} times"));
        }
        if !home {
            self.wrong(at, format!("post {post} was executed by another backend"));
        }
        // The level is the most verbose that a session wants, so its value may differ.
        if !level && !translated && expected != line {
            self.wrong(
                at,
                format!("post {post} reached the server as {line}, not as {expected}"),
            );
        }
    }

    fn ended(&mut self, at: Moment, session: usize, post: usize, body: &str, reason: Option<&str>) {
        let Some(case) = self.cases.get_mut(&post) else {
            return self.wrong(at, format!("an answer to post {post}, which was never sent"));
        };
        case.endings.push((at, body.into(), reason.map(str::to_owned)));
        let mut wrongs = Vec::new();
        if case.session != session {
            wrongs.push(format!("session {session} read the ending of post {post}"));
        }
        if case.endings.len() > 1 {
            wrongs.push(format!("post {post} ended {} times", case.endings.len()));
        }
        if !body.contains(&format!(r#""id":{}"#, case.id)) {
            wrongs.push(format!("post {post} with id {} was answered by {body}", case.id));
        }
        // A listen lasts as long as its client wants. A paused reader reads late; pauses last six
        // seconds at most.
        if !matches!(case.method, "initialize" | "subscriptions/listen")
            && case.limit.is_some()
            && at > case.due.after(Duration::from_secs(6))
        {
            let late = at.since(case.due);
            wrongs.push(format!(
                "post {post} ended after {:?}, {late:?} too late",
                at.since(case.posted)
            ));
        }
        if case.method != "initialize" && reason.is_none() && !body.ends_with(r#""result":{}}"#) {
            let root = case.retry_of.unwrap_or(post);
            let (id, translated) = (case.id.clone(), case.translated);
            let answers = self.cases.get(&root).map(|case| &case.answers);
            let first = answers
                .and_then(|answers| answers.first())
                .map(|(_, template)| template.replace(ID, &id));
            let same = match &first {
                Some(_) if translated => body.contains(&format!(r#""of":{root}"#)),
                Some(first) => first == body,
                None => false,
            };
            if !same {
                wrongs.push(format!("post {post} got {body}, its server wrote {first:?}"));
            }
        }
        for what in wrongs {
            self.wrong(at, what);
        }
    }

    /// No stranger, and everything in its order.
    fn check_read(
        &mut self,
        at: Moment,
        session: usize,
        connection: usize,
        event: (u64, u64),
        seq: Option<u64>,
        post: Option<usize>,
    ) {
        if let Some((stream, number)) = self.places.insert(connection, event)
            && (stream != event.0 || number >= event.1)
        {
            self.wrong(
                at,
                format!("connection {connection} read event {event:?} after {stream}-{number}"),
            );
        }
        let question = seq
            .and_then(|seq| self.written.get(&seq))
            .is_some_and(|(_, kind, ..)| *kind == Kind::Question);
        if let Some(owner) = post
            .and_then(|post| self.cases.get(&post))
            .map(|case| case.session)
            && owner != session
            && !(question && self.is_left_behind(post, session))
            && !self.is_given_up(post, session)
            && !(seq.is_some_and(|seq| self.restless.contains(&seq))
                && self.is_same_principal(owner, session))
        {
            self.wrong(
                at,
                format!("session {session} read what was caused by session {owner}: seq {seq:?}"),
            );
        }
        self.no_stranger(at, post, session, "read");
        let Some(seq) = seq else { return };
        let Some((backend, kind, uri, attached)) = self.written.get(&seq).cloned() else {
            return self.wrong(at, format!("session {session} read {seq}, which no server wrote"));
        };
        if !self.homes.get(&session).is_some_and(|home| home.has(backend)) {
            self.wrong(at, format!("session {session} read another backend: {seq}"));
        }
        if question {
            // One that was held comes when it is known whose it is, and others go before.
            return;
        }
        self.events.insert((session, event.0, event.1), seq);
        if let Some(before) = self.seqs.insert((connection, backend), seq)
            && before >= seq
        {
            self.wrong(at, format!("connection {connection} read {seq} after {before}"));
        }
        // What a listen of the modern era receives is checked where it is read.
        if let (Kind::Updated, Some(uri), true) = (kind, uri, session < FIRST) {
            let none = BTreeSet::new();
            let subscribers = self.subscribers.get(&seq).unwrap_or(&none);
            let subscribed = subscribers.contains(&session);
            // The only session there is receives everything, unless another principal may have
            // subscribed to it.
            // A client of an aggregate leaves its members and comes back to them, which only the
            // bridge knows.
            let strange = subscribers.iter().any(|other| {
                self.homes.get(other) == Some(&Home::Backend(backend))
                    && !self.is_same_principal(*other, session)
            });
            if !subscribed && (attached > 1 || strange) {
                self.wrong(
                    at,
                    format!("session {session} read about {uri} and never subscribed"),
                );
            }
        }
        if let (Kind::Log, None, Some(principal)) = (kind, post, self.principals.get(&session).copied())
            && let Some(other) = self.loose_logs.insert(seq, principal)
            && other != principal
        {
            self.wrong(at, format!("both {other} and {principal} read {seq}"));
        }
        self.no_gap(at, session, connection, backend, seq);
    }

    /// Returns whether a call is suspended, which it is while it carries an open question. A call
    /// that waits sends nothing, so others of the same principal may run meanwhile, and what it
    /// sends all the same is taken for theirs. Only the bridge knows which call carries a question,
    /// so any open one excuses here; another principal never receives it.
    fn rests(&self, post: Option<usize>) -> bool {
        let Some(case) = post.and_then(|post| self.cases.get(&post)) else {
            return false;
        };
        self.questions
            .iter()
            .any(|((backend, ..), one)| Some(*backend) == case.owner && one.answers == 0 && !one.withdrawn)
    }

    fn is_same_principal(&self, one: usize, other: usize) -> bool {
        self.principals.get(&one) == self.principals.get(&other)
    }

    /// A session may be excused for what it has of another session's call, but never of another
    /// principal's.
    fn no_stranger(&mut self, at: Moment, post: Option<usize>, session: usize, did: &str) {
        let owner = post
            .and_then(|post| self.cases.get(&post))
            .map(|case| case.session);
        if let Some(owner) = owner
            && !self.is_same_principal(owner, session)
        {
            let (theirs, whose) = (self.principals.get(&session), self.principals.get(&owner));
            self.wrong(
                at,
                format!("principal {theirs:?} {did} what principal {whose:?} caused"),
            );
        }
    }

    /// A server that ends a call and leaves its question behind makes it look like that of another
    /// session. It may be put to one of the same principal then, and to no other.
    fn is_left_behind(&self, post: Option<usize>, session: usize) -> bool {
        post.and_then(|post| self.cases.get(&post)).is_some_and(|case| {
            let ended = !case.answers.is_empty() || case.too_long;
            ended && self.is_same_principal(case.session, session)
        })
    }

    /// A server may talk for ever about a call that its client or the bridge gave up. It is put to
    /// a session of the same principal if the call's own has gone, or if only another one has a
    /// call that could be meant.
    fn is_given_up(&self, post: Option<usize>, session: usize) -> bool {
        // What is for several members has its answer at once.
        post.and_then(|post| self.cases.get(&post)).is_some_and(|case| {
            (case.given_up || case.owner.is_none()) && self.is_same_principal(case.session, session)
        })
    }

    /// Between two notices of one server on one GET stream no other notice of it is missing without
    /// a mark.
    fn no_gap(&mut self, at: Moment, session: usize, connection: usize, backend: usize, seq: u64) {
        let Some(last) = self.notices.get_mut(&connection) else {
            return;
        };
        if self.gaps.remove(&connection) {
            last.clear();
        }
        let Some(before) = last.insert(backend, seq) else {
            return;
        };
        let is_from_it = |seq: &u64| self.written.get(seq).is_some_and(|(from, ..)| *from == backend);
        let missing = self
            .delivered
            .get(&session)
            .and_then(|delivered| {
                delivered
                    .iter()
                    .find(|one| **one > before && **one < seq && is_from_it(one))
            })
            .copied();
        if let Some(missing) = missing {
            self.wrong(
                at,
                format!("connection {connection} missed {missing} between {before} and {seq}"),
            );
        }
    }

    fn answer_read(&mut self, at: Moment, key: (usize, u32, u64), nonce: Option<u64>) {
        let Some(question) = self.questions.get_mut(&key) else {
            return self.wrong(
                at,
                format!("an answer to question {key:?}, which was never asked"),
            );
        };
        question.answers += 1;
        let asked_for = question.post;
        self.extend_related(at, Duration::ZERO, key.0, asked_for);
        let Some(question) = self.questions.get(&key) else {
            return;
        };
        let (answers, post, restless) = (question.answers, question.post, question.restless);
        let asked = question.seq;
        if answers > 1 {
            self.wrong(at, format!("question {key:?} was answered {answers} times"));
        }
        let Some(nonce) = nonce else { return };
        let (replier, answered) = self
            .repliers
            .get(&nonce)
            .map_or((None, None), |(replier, seq)| (Some(*replier), *seq));
        // Roots are kept, so that a client need not tell them again.
        if let (Some(asked), Some(answered), Some(_)) = (asked, answered, post)
            && asked != answered
        {
            self.wrong(
                at,
                format!("question {key:?}, which is {asked}, was given the answer to {answered}"),
            );
        }
        let owner = post
            .and_then(|post| self.cases.get(&post))
            .map(|case| case.session);
        let excused = replier.is_some_and(|replier| {
            let ours = owner.is_some_and(|owner| restless && self.is_same_principal(owner, replier));
            ours || self.is_left_behind(post, replier) || self.is_given_up(post, replier)
        });
        if replier.is_none() || (owner.is_some() && owner != replier && !excused) {
            self.wrong(
                at,
                format!("question {key:?} of session {owner:?} was answered by {replier:?}"),
            );
        }
        if let Some(replier) = replier {
            self.no_stranger(at, post, replier, "answered");
        }
        let home = replier.and_then(|session| self.homes.get(&session));
        if !home.is_some_and(|home| home.has(key.0)) {
            self.wrong(at, format!("question {key:?} was answered from another backend"));
        }
    }

    fn conclude(&mut self) {
        let mut wrongs = Vec::new();
        // A server that hangs never reads what is sent to it.
        for (backend, (epoch, _)) in &self.hung {
            self.epochs_down.insert((*backend, *epoch));
        }
        for backend in self.replaced_by.keys() {
            wrongs.push(format!("backend {backend} hangs and was never replaced"));
        }
        for (post, case) in &self.cases {
            if case.endings.is_empty() && !case.abandoned {
                wrongs.push(format!("post {post} ({}) never ended", case.method));
            }
            // The server was sent a cancellation for each call that the bridge abandoned, if it was
            // still there.
            let given_up = case.endings.iter().any(|(_, _, reason)| {
                matches!(
                    reason.as_deref(),
                    Some("cancelled" | "timeout" | "session_ended" | "incapable")
                )
            });
            // An answer may come while the cancellation is on its way; that takes twenty
            // milliseconds at most.
            let answered = case.answers.first().map(|(at, _)| *at);
            let hung_up = case.hung_up.is_some_and(|left| {
                answered.is_none_or(|at| at.since(left) > Duration::from_millis(20)) && !case.too_long
            });
            // The answer of a member is not for a client of the aggregate that has just left.
            let left_late = !case.answers.is_empty()
                && matches!(self.homes.get(&case.session), Some(Home::Members(_)))
                && case
                    .endings
                    .iter()
                    .any(|(_, _, reason)| reason.as_deref() == Some("session_ended"));
            for place in &case.executions {
                if (given_up || hung_up)
                    && !left_late
                    && !self.epochs_down.contains(&(place.0, place.1))
                    && !self.cancels.contains(place)
                    && !self.done.contains(place)
                {
                    wrongs.push(format!(
                        "post {post} was abandoned without a cancellation for its server"
                    ));
                }
            }
        }
        for (key, question) in &self.questions {
            if question.answers == 0 && !question.withdrawn && !self.epochs_down.contains(&(key.0, key.1)) {
                wrongs.push(format!("question {key:?} was never answered"));
            }
        }
        self.wrongs.append(&mut wrongs);
    }
}

/// Returns what is wrong if a client reads the first notice of a server on one connection, goes on
/// after an event of Rialto's own, and then reads the third. `has_mark`: that event came after a
/// mark that others are lost.
fn faults_of_a_resumed_stream(has_mark: bool) -> Vec<String> {
    let wrote = |seq| Fact::ServerWrote {
        backend: 0,
        seq,
        post: None,
        kind: Kind::ListChanged,
        uri: None,
        attached: 1,
    };
    let (session, stream) = (0, 1);
    let read = |connection, number, seq| Fact::ClientRead {
        session,
        connection,
        stream,
        number,
        seq,
        post: None,
    };
    let mut history = History::default();
    let mut note = |fact| history.note(Moment::START, fact);
    note(Fact::SessionOpened {
        session,
        home: Home::Backend(0),
        principal: "alice",
    });
    note(Fact::Listened {
        session,
        connection: 0,
    });
    for seq in 1..4 {
        note(wrote(seq));
        note(Fact::Delivered { session, seq });
    }
    note(read(0, 1, Some(1)));
    if has_mark {
        note(Fact::GapRead {
            session,
            connection: 0,
        });
    }
    note(read(0, 8, None));
    note(Fact::Resumed {
        session,
        connection: 1,
        post: None,
        stream,
        number: 8,
    });
    note(read(1, 9, Some(3)));
    check(&history)
}

#[test]
fn mark_of_lost_events_holds_for_the_connection_that_goes_on_after_it() {
    assert_eq!(faults_of_a_resumed_stream(true), Vec::<String>::new());
    let faults = faults_of_a_resumed_stream(false);
    assert!(
        faults
            .iter()
            .any(|fault| fault.contains("missed 2 between 1 and 3")),
        "{faults:?}"
    );
}
