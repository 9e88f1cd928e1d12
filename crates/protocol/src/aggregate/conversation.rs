//! The conversation between one client and the members of an aggregate.
//!
//! A [`Conversation`] takes the place of the instance, for one [`Session`] or one
//! [`ModernRequest`], and these two do not know it. To the instance of each member it is an
//! ordinary user, under the client's own [`SessionKey`].
//!
//! ```text
//! Session or      ══Ask══▶  Conversation  ══Ask══▶ instance of a member
//! ModernRequest   ◀══Tell══               ◀══Tell══
//! ```
//!
//! # The one mechanism: exact routes
//!
//! A call of the client goes to one member, or is answered from the [`View`]. [`Routes`] notes the
//! member of each open call. A message of a member about a call counts only if the call is its own, so
//! that progress, answers and cancellations concern one member. Nothing is ever broadcast but
//! changed roots and the log level, which are the client's and concern every member.
//!
//! | Key | How it is unique over members |
//! |---|---|
//! | sessions | one counter of the process; each member knows the client by the same key |
//! | calls | the client's own key goes to one member; keys of the conversation's own calls have the top bit set |
//! | questions, and progress tokens in them | new ones (`questions`), mapped back with the answer |
//! | tasks, states | `NAME:id`; no name of a member has a `:` |
//! | cursors | of the view's own pages, sealed by [`CursorSeal`] |
//! | names, URIs | exact tables of the view |
//!
//! # The road of a call
//!
//! `routing` decides by the view and nothing else where a call goes, and rewrites it. The link to
//! that member is opened if it is not (`links`), and the call follows at once: the multiplexer lets
//! it wait for the start of the server. The answer is rewritten by the view under which the member
//! was last shown, and its route is forgotten.
//!
//! A member is opened by the first ask for it, never by a handshake, a discovery or a list. A link
//! whose instance was lost is opened anew with what the client has set ([`Ask::Restore`]).
//!
//! # What is not known
//!
//! While no member is known, and for a name that a member of which nothing is known may have, the
//! client waits ([`AggregateLimits::ready_timeout`]) and the driver is asked to read these members
//! ([`ConversationOutput::Read`]). After that, or if all of them are down, the client gets an error.
//! An empty list is never the answer to "I do not know".
//!
//! # The machines
//!
//! | Machine | State |
//! |---|---|
//! | `links` | which members were opened, and the view by which each is spoken of |
//! | `routes` | the member of each open call, and what becomes of its answer |
//! | `questions` | open questions of members, under keys of the conversation |
//! | `subscriptions` | resources by member, and the URIs under which the client knows them |
//! | `task_lists` | lists of tasks that are gathered from several members |
//!
//! [`Session`]: crate::session::Session
//! [`ModernRequest`]: crate::modern_request::ModernRequest
//! [`AggregateLimits::ready_timeout`]: super::AggregateLimits::ready_timeout

mod answers;
mod links;
mod questions;
mod routes;
mod routing;
mod search_tools;
mod subscriptions;
mod task_lists;

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;

use super::offer::ListKind;
use super::plan::{MemberName, ToolsMode};
use super::rewriting::{Speaker, own_uri};
use super::view::{Owner, View};
use crate::backend_face;
use crate::exchange::{
    Ask, Call, CallKey, Client, Failure, QuestionKey, Request, SessionKey, SessionState, Tell,
};
use crate::message::{Kind, Member, Message};
use crate::method::{LogLevel, Method};
use crate::time::Moment;
use crate::version::Era;
use answers::Failed;
use links::{Link, Links};
use questions::Questions;
use routes::{Purpose, Route, Routes};
use routing::{Directed, Refusal, Router, Way};
pub use search_tools::tool_within;
use subscriptions::Subscriptions;
use task_lists::{Step, TaskLists};

/// Calls that may wait at once for members of which nothing is known.
const MAX_WAITING: usize = 1024;

/// Seals the cursors of pages, so that a client can only give back what it was given.
pub trait CursorSeal: Debug + Send + Sync {
    /// Returns the sealed text; `None` if it cannot be sealed.
    fn seal(&self, cursor: &str) -> Option<String>;
    /// Returns the text of a sealed one; `None` if it is no such text, or that of another caller.
    fn open(&self, sealed: &str) -> Option<String>;
}

/// No cursors: for an aggregate whose lists have one page.
#[derive(Debug, Clone, Copy)]
pub struct NoCursors;

impl CursorSeal for NoCursors {
    fn seal(&self, _: &str) -> Option<String> {
        None
    }

    fn open(&self, _: &str) -> Option<String> {
        None
    }
}

/// Where a call of the client goes. For the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routed {
    /// The call, under the client's key.
    pub call: CallKey,
    /// The member.
    pub member: MemberName,
    /// What the member calls the tool, the prompt or the resource; empty for any other request.
    pub own: String,
}

/// What the machine wants done.
#[derive(Debug)]
pub enum ConversationOutput {
    /// Something for the client's session or modern request.
    Tell(Tell),
    /// Something for the instance of a member. [`Ask::Open`] and [`Ask::Restore`] begin its use,
    /// and [`Ask::Close`] ends it.
    Ask {
        /// The member.
        member: MemberName,
        /// What the client wants of it.
        ask: Ask,
    },
    /// The client waits for what this member offers, of which nothing is known: it is to be read.
    Read(MemberName),
    /// A call of the client goes to a member.
    Routed(Routed),
}

/// The client, as it has opened its conversation.
#[derive(Debug)]
struct User {
    session: SessionKey,
    client: Arc<Client>,
    /// Its own handshake, for members that are opened later.
    initialize: Option<Message>,
    era: Era,
    wants_notifications: bool,
    /// Its `notifications/initialized`.
    ready: Option<Message>,
    level: Option<LogLevel>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// No member is known.
    Opening {
        call: CallKey,
        until: Moment,
        /// The subscriptions of a session that is restored, as the client wrote them.
        restored: Option<Vec<String>>,
    },
    Open,
    /// Its handshake was refused, since no member was known.
    Refused,
    /// The client has gone.
    Closed,
}

/// A call that waits for members of which nothing is known.
#[derive(Debug)]
struct Waiting {
    call: Call,
    until: Moment,
}

/// The conversation between one client and the members of an aggregate.
///
/// [`Self::handle_ask`] takes what the client's machine wants, [`Self::handle_tell`] what the
/// instance of a member has for it, and [`Self::handle_view`] what is shown from now on. The driver
/// carries out the outputs of [`Self::poll_output`] in their order, and calls
/// [`Self::handle_deadline`] at [`Self::next_deadline`].
#[derive(Debug)]
pub struct Conversation {
    view: Arc<View>,
    tools: ToolsMode,
    cursors: Arc<dyn CursorSeal>,
    user: Option<User>,
    links: Links,
    routes: Routes,
    questions: Questions,
    subscriptions: Subscriptions,
    task_lists: TaskLists,
    waiting: VecDeque<Waiting>,
    /// Members that the driver was asked to read.
    wanted: BTreeSet<MemberName>,
    outputs: VecDeque<ConversationOutput>,
}

impl Conversation {
    /// Returns a conversation whose client has not opened it. `tools` is how this client is shown
    /// tools.
    pub fn new(view: Arc<View>, tools: ToolsMode, cursors: Arc<dyn CursorSeal>) -> Self {
        Self {
            view,
            tools,
            cursors,
            user: None,
            links: Links::default(),
            routes: Routes::default(),
            questions: Questions::default(),
            subscriptions: Subscriptions::default(),
            task_lists: TaskLists::default(),
            waiting: VecDeque::new(),
            wanted: BTreeSet::new(),
            outputs: VecDeque::new(),
        }
    }

    /// Returns what its client is shown.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// Returns the members at which it is a user.
    pub fn open_members(&self) -> impl Iterator<Item = &MemberName> {
        self.links.open().map(|link| link.member())
    }

    /// Returns how many calls have no answer yet.
    pub fn open_calls(&self) -> usize {
        self.routes.len() + self.waiting.len()
    }

    /// Returns how many questions of members have no answer yet.
    pub fn open_questions(&self) -> usize {
        self.questions.len()
    }

    /// Returns what is to be done next.
    pub fn poll_output(&mut self) -> Option<ConversationOutput> {
        self.outputs.pop_front()
    }

    /// Returns when [`Self::handle_deadline`] is to be called.
    pub fn next_deadline(&self) -> Option<Moment> {
        let opening = self.user.as_ref().and_then(|user| match user.stage {
            Stage::Opening { until, .. } => Some(until),
            Stage::Open | Stage::Refused | Stage::Closed => None,
        });
        let waiting = self.waiting.iter().map(|waiting| waiting.until);
        waiting.chain(opening).min()
    }

    // From the client.

    /// Takes what the client's machine wants.
    pub fn handle_ask(&mut self, now: Moment, ask: Ask) {
        match ask {
            Ask::Open {
                session,
                call,
                client,
                initialize,
                era,
                wants_notifications,
            } => {
                let user = User {
                    session,
                    client,
                    initialize,
                    era,
                    wants_notifications,
                    ready: None,
                    level: None,
                    stage: Stage::Closed,
                };
                self.open(now, user, call, None);
            }
            Ask::Restore {
                session,
                call,
                client,
                initialize,
                era,
                state,
            } => {
                let user = User {
                    session,
                    client,
                    initialize,
                    era,
                    wants_notifications: true,
                    ready: None,
                    level: state.log_level,
                    stage: Stage::Closed,
                };
                self.open(now, user, call, Some(state.subscriptions));
            }
            Ask::Ready { session, message } => {
                if let Some(user) = &mut self.user {
                    user.ready = Some(message.clone());
                }
                let open = self.links.open().filter(|link| link.is_open());
                let members: Vec<MemberName> = open.map(|link| link.member().clone()).collect();
                for member in members {
                    let message = message.clone();
                    self.ask(&member, Ask::Ready { session, message });
                }
            }
            Ask::Call(call) => self.call(now, call),
            Ask::Cancel {
                session,
                call,
                message,
            } => self.cancel(session, call, message),
            Ask::Answer {
                session,
                question,
                message,
            } => {
                let Some((member, question)) = self.questions.take(question) else {
                    return;
                };
                let speaker = self.links.get(&member).and_then(Link::speaker);
                let own = speaker.and_then(|speaker| speaker.answer(&message));
                let message = own.unwrap_or(message);
                self.ask(
                    &member,
                    Ask::Answer {
                        session,
                        question,
                        message,
                    },
                );
            }
            Ask::Unanswerable { session, question } => {
                if let Some((member, question)) = self.questions.take(question) {
                    self.ask(&member, Ask::Unanswerable { session, question });
                }
            }
            Ask::Notice { session, message } => self.notice(session, message),
            Ask::Close { session } => self.close(session),
        }
    }

    /// Opens the conversation: at once if any member is known.
    fn open(&mut self, now: Moment, user: User, call: CallKey, restored: Option<Vec<String>>) {
        let until = now.after(self.view.plan().limits().ready_timeout);
        let stage = Stage::Opening {
            call,
            until,
            restored,
        };
        self.user = Some(User { stage, ..user });
        self.try_open(now);
    }

    /// Answers the handshake as soon as that is possible.
    fn try_open(&mut self, now: Moment) {
        let Some(user) = &mut self.user else { return };
        let Stage::Opening {
            call,
            until,
            restored,
        } = &mut user.stage
        else {
            return;
        };
        let (session, call) = (user.session, *call);
        if !self.view.is_known() {
            if *until <= now || !self.view.may_become_known() {
                user.stage = Stage::Refused;
                let failure = answers::nothing_known(&self.view);
                self.tell(Tell::Failed {
                    session,
                    call,
                    failure,
                });
            }
            // The next client may find them known.
            return self.want_members();
        }
        let restored = restored.take();
        user.stage = Stage::Open;
        let server_info = self.view.declarations().for_client(user.era, &user.client);
        self.tell(Tell::Opened {
            session,
            call,
            server_info,
        });
        if let Some(subscriptions) = restored {
            self.restore(subscriptions);
        }
    }

    /// Goes on with what a restored session was subscribed to. Its client may have missed changes.
    fn restore(&mut self, subscriptions: Vec<String>) {
        let mut owners = BTreeSet::new();
        for shown in subscriptions {
            if let Owner::Member(at, own) = self.view.owner(&shown)
                && let Some(member) = self.view.plan().members().get(at)
            {
                self.subscriptions.add(member.name(), &own, &shown);
                owners.insert(at);
            }
        }
        for at in owners {
            self.open_link(at);
        }
        let kinds = [ListKind::Tools, ListKind::Prompts, ListKind::Resources];
        self.tell_changed(kinds.map(ListKind::changed));
    }

    /// Has the driver read the members of which nothing is known.
    fn want_members(&mut self) {
        for member in self.view.unknown_members() {
            if self.wanted.insert(member.clone()) {
                let read = ConversationOutput::Read(member.clone());
                self.outputs.push_back(read);
            }
        }
    }

    fn call(&mut self, now: Moment, call: Call) {
        let until = now.after(self.view.plan().limits().ready_timeout);
        if let Some(waiting) = self.direct(now, Waiting { call, until }) {
            if self.waiting.len() >= MAX_WAITING {
                let Call { session, call, .. } = waiting.call;
                let limit = "waiting calls";
                let failure = Failure::Overloaded { limit };
                return self.tell(Tell::Failed {
                    session,
                    call,
                    failure,
                });
            }
            self.waiting.push_back(waiting);
            self.want_members();
        }
    }

    /// Sends a call on its way. Returns it if it has to wait for members of which nothing is known.
    fn direct(&mut self, now: Moment, waiting: Waiting) -> Option<Waiting> {
        let Call { session, call, .. } = waiting.call;
        let Some(user) = self.user.as_ref().filter(|user| user.may_call()) else {
            let failure = match &self.user {
                // A modern client's call comes together with its handshake.
                Some(user) if !user.is_closed() => answers::nothing_known(&self.view),
                Some(_) | None => Failure::SessionEnded,
            };
            self.tell(Tell::Failed {
                session,
                call,
                failure,
            });
            return None;
        };
        let router = Router {
            view: &self.view,
            tools: self.tools,
            cursors: &*self.cursors,
            client: &user.client,
            era: user.era,
        };
        match router.way(&waiting.call) {
            Way::Member(directed) => self.send(waiting.call, *directed),
            Way::Answer((message, era)) => self.reply(session, call, message, era),
            Way::Level(level) => self.set_level(waiting.call, level),
            Way::TaskList => self.list_tasks(waiting.call),
            Way::Unknown(refusal) => {
                if waiting.until > now && self.view.may_become_known() {
                    return Some(waiting);
                }
                match refusal {
                    Refusal::Answer((message, era)) => self.reply(session, call, message, era),
                    Refusal::Failure(failure) => self.tell(Tell::Failed {
                        session,
                        call,
                        failure,
                    }),
                }
            }
        }
        None
    }

    /// Sends a call to its member.
    fn send(&mut self, call: Call, directed: Directed) {
        let Directed {
            at,
            own,
            request,
            message,
        } = directed;
        let Some(member) = self.open_link(at) else { return };
        let purpose = match (&call.request, &request) {
            (Request::Subscribe { uri: shown }, Request::Subscribe { uri: own }) => {
                // An update may come before the answer does.
                if !self.subscriptions.add(&member, own, shown) {
                    let Call { session, call, .. } = call;
                    let limit = "resource subscriptions";
                    let failure = Failure::Overloaded { limit };
                    return self.tell(Tell::Failed {
                        session,
                        call,
                        failure,
                    });
                }
                let (own, shown) = (own.clone(), shown.clone());
                Purpose::Subscribe { own, shown }
            }
            (Request::Unsubscribe { uri: shown }, Request::Unsubscribe { uri: own }) => {
                if self.subscriptions.remove(&member, own, shown) {
                    let Call { session, call, .. } = call;
                    return self.tell(Tell::Done { session, call });
                }
                Purpose::Client(call.message.method())
            }
            _ => Purpose::Client(call.message.method()),
        };
        self.outputs.push_back(ConversationOutput::Routed(Routed {
            call: call.call,
            member: member.clone(),
            own,
        }));
        let route = Route {
            member: member.clone(),
            purpose,
        };
        self.routes.insert(call.call, route);
        let call = Call {
            request,
            message,
            // They were checked against what the client was shown.
            mirrored: None,
            ..call
        };
        self.ask(&member, Ask::Call(call));
    }

    /// Makes the conversation a user of a member, if it is none.
    fn open_link(&mut self, at: usize) -> Option<MemberName> {
        let link = self.links.entry(&self.view, at)?;
        let member = link.member().clone();
        if !link.must_open() {
            return Some(member);
        }
        let call = self.routes.new_key();
        link.handle_asked(call);
        let logs = link.logs();
        // A server that has refused the handshake may have asked all the same.
        self.withdraw_questions(&member);
        let user = self.user.as_ref()?;
        let state = SessionState {
            log_level: user.level.filter(|_| logs),
            subscriptions: self.subscriptions.of(&member),
        };
        let (session, era) = (user.session, user.era);
        let (client, initialize) = (Arc::clone(&user.client), user.initialize.clone());
        let ask = match state == SessionState::default() {
            true => Ask::Open {
                session,
                call,
                client,
                initialize,
                era,
                wants_notifications: user.wants_notifications,
            },
            false => Ask::Restore {
                session,
                call,
                client,
                initialize,
                era,
                state,
            },
        };
        self.ask(&member, ask);
        Some(member)
    }

    /// Keeps the level for members that are opened later, and sends it to those that are open.
    fn set_level(&mut self, call: Call, level: LogLevel) {
        if let Some(user) = &mut self.user {
            user.level = Some(level);
        }
        let logging = self.links.open().filter(|link| link.logs());
        let members: Vec<MemberName> = logging.map(|link| link.member().clone()).collect();
        for member in members {
            let own = self.routes.new_key();
            let route = Route {
                member: member.clone(),
                purpose: Purpose::Level,
            };
            self.routes.insert(own, route);
            let call = Call {
                call: own,
                ..call.clone()
            };
            self.ask(&member, Ask::Call(call));
        }
        let Call { session, call, .. } = call;
        self.tell(Tell::Done { session, call });
    }

    /// Begins to gather the tasks of the members that run, or that this client has used.
    fn list_tasks(&mut self, call: Call) {
        let is_used = |at: usize| {
            let member = self.view.plan().members().get(at);
            member.is_some_and(|member| self.links.get(member.name()).is_some_and(Link::is_attached))
        };
        let members: Vec<usize> = self.view.with_tasks(is_used).collect();
        if members.is_empty() {
            let Some(user) = &self.user else { return };
            let list = self.view.task_list(user.era, &[]);
            return self.reply(call.session, call.call, list, user.era);
        }
        let pages: Vec<(usize, CallKey)> = members
            .into_iter()
            .map(|at| (at, self.routes.new_key()))
            .collect();
        self.task_lists
            .begin(call.call, pages.iter().map(|(_, page)| *page));
        for (at, page) in pages {
            self.ask_task_page(&call, at, page, None);
        }
    }

    /// Asks a member for a page. Returns whether there is such a member.
    fn ask_task_page(&mut self, call: &Call, at: usize, page: CallKey, cursor: Option<&str>) -> bool {
        let Some(member) = self.open_link(at) else {
            return false;
        };
        let purpose = Purpose::TaskPage(call.call);
        let route = Route {
            member: member.clone(),
            purpose,
        };
        self.routes.insert(page, route);
        let call = Call {
            call: page,
            message: task_lists::page_request(cursor),
            ..call.clone()
        };
        self.ask(&member, Ask::Call(call));
        true
    }

    /// Cancels a call at its member, or where it waits.
    fn cancel(&mut self, session: SessionKey, call: CallKey, message: Option<Message>) {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.call.call != call);
        let gathered = self.task_lists.cancel(call);
        if self.waiting.len() < before || gathered.is_some() {
            let failure = Failure::Cancelled;
            self.tell(Tell::Failed {
                session,
                call,
                failure,
            });
        }
        for page in gathered.unwrap_or_default() {
            self.cancel_at_member(session, page, None);
        }
        self.cancel_at_member(session, call, message);
    }

    fn cancel_at_member(&mut self, session: SessionKey, call: CallKey, message: Option<Message>) {
        if let Some(member) = self.routes.member(call).cloned() {
            self.ask(
                &member,
                Ask::Cancel {
                    session,
                    call,
                    message,
                },
            );
        }
    }

    /// Passes on a notification of the client: changed roots to all members, progress to the one
    /// that wants it, and any other where there is one member alone.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "every other notification is treated alike"
    )]
    fn notice(&mut self, session: SessionKey, message: Message) {
        let members: Vec<(MemberName, Message)> = match message.method() {
            Method::Progress => self.questions.progress(&message).into_iter().collect(),
            Method::RootsListChanged => self.to_open_members(&message),
            _ if self.view.plan().is_single() => self.to_open_members(&message),
            _ => Vec::new(),
        };
        for (member, message) in members {
            self.ask(&member, Ask::Notice { session, message });
        }
    }

    fn to_open_members(&self, message: &Message) -> Vec<(MemberName, Message)> {
        let open = self.links.open();
        open.map(|link| (link.member().clone(), message.clone()))
            .collect()
    }

    /// The client has gone. Its calls end here: members have nothing more for it once they are
    /// closed.
    fn close(&mut self, session: SessionKey) {
        let Some(user) = &mut self.user else { return };
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let mut left: Vec<CallKey> = waiting.map(|waiting| waiting.call.call).collect();
        if let Stage::Opening { call, .. } = std::mem::replace(&mut user.stage, Stage::Closed) {
            left.push(call);
        }
        left.extend(self.routes.take_calls());
        left.extend(self.task_lists.take_calls());
        for call in left {
            let failure = Failure::SessionEnded;
            self.tell(Tell::Failed {
                session,
                call,
                failure,
            });
        }
        self.subscriptions.clear();
        self.questions = Questions::default();
        let open = self.links.open();
        let members: Vec<MemberName> = open.map(|link| link.member().clone()).collect();
        for member in members {
            self.close_link(&member);
        }
    }

    fn close_link(&mut self, member: &str) {
        let Some((link, user)) = self.links.get_mut(member).zip(self.user.as_ref()) else {
            return;
        };
        link.close();
        let (member, session) = (link.member().clone(), user.session);
        self.withdraw_questions(&member);
        self.ask(&member, Ask::Close { session });
    }

    /// Takes the questions of a member back from the client: the member can take no answer any more.
    fn withdraw_questions(&mut self, member: &str) {
        let Some(session) = self.user.as_ref().map(|user| user.session) else {
            return;
        };
        for question in self.questions.take_of(member) {
            self.tell(Tell::Withdrawn {
                session,
                question,
                message: None,
            });
        }
    }

    // From the members.

    /// Takes what the instance of a member has for the client.
    pub fn handle_tell(&mut self, member: &str, tell: Tell) {
        match tell {
            Tell::Opened { session, call, .. } => {
                let Some(link) = self.links.get_mut(member) else {
                    return;
                };
                let ready = self.user.as_ref().and_then(|user| user.ready.clone());
                if let (true, Some(message)) = (link.handle_opened(call), ready) {
                    let member = link.member().clone();
                    self.ask(&member, Ask::Ready { session, message });
                }
            }
            Tell::Reply {
                call, message, era, ..
            } => self.finish(member, call, Outcome::Reply(message, era)),
            Tell::Done { call, .. } => self.finish(member, call, Outcome::Done),
            Tell::Failed { call, failure, .. } => self.finish(member, call, Outcome::Failed(failure)),
            Tell::Related {
                session,
                call,
                message,
            } => {
                if self.routes.is_at(call, member) {
                    let message = self.spoken(member, message, |speaker, message| speaker.notice(message));
                    self.tell(Tell::Related {
                        session,
                        call,
                        message,
                    });
                }
            }
            Tell::Waiting { session, call } => {
                if self.routes.is_at(call, member) {
                    self.tell(Tell::Waiting { session, call });
                }
            }
            Tell::Notice { session, message } => self.handle_notice(member, session, message),
            Tell::Question {
                session,
                call,
                question,
                message,
            } => self.handle_question(member, session, call, question, message),
            Tell::Withdrawn {
                session,
                question,
                message,
            } => {
                if let Some(question) = self.questions.withdraw(member, question) {
                    self.tell(Tell::Withdrawn {
                        session,
                        question,
                        message,
                    });
                }
            }
        }
    }

    /// Returns a message of a member as the client sees it.
    fn spoken(
        &self,
        member: &str,
        message: Message,
        rewrite: impl FnOnce(&Speaker<'_>, &Message) -> Option<Message>,
    ) -> Message {
        let speaker = self.links.get(member).and_then(Link::speaker);
        let rewritten = speaker.and_then(|speaker| rewrite(&speaker, &message));
        rewritten.unwrap_or(message)
    }

    /// Passes on a message of a member that is about no call. Changed lists are the view's to announce.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "every other notification is treated alike"
    )]
    fn handle_notice(&mut self, member: &str, session: SessionKey, message: Message) {
        match message.method() {
            Method::ToolsListChanged | Method::PromptsListChanged | Method::ResourcesListChanged => {}
            Method::ResourcesUpdated => {
                let speaker = self.links.get(member).and_then(Link::speaker);
                let uri = message.text(Member::Uri);
                let (Some(speaker), Some(uri)) = (speaker, uri) else {
                    return;
                };
                let qualified = speaker.member.shown_uri(&uri);
                for shown in self.subscriptions.shown(member, &uri, &qualified) {
                    let message = own_uri(&message, &shown);
                    self.tell(Tell::Notice { session, message });
                }
            }
            _ => {
                let message = self.spoken(member, message, |speaker, message| speaker.notice(message));
                self.tell(Tell::Notice { session, message });
            }
        }
    }

    /// Sends a member's question to the client. Its text names the member for the user.
    fn handle_question(
        &mut self,
        member: &str,
        session: SessionKey,
        call: Option<CallKey>,
        own: QuestionKey,
        message: Message,
    ) {
        let link = self.links.get(member).filter(|link| link.is_attached());
        let Some((name, speaker)) = link.and_then(|link| Some((link.member(), link.speaker()?))) else {
            return;
        };
        let (question, message) = self.questions.ask(name.clone(), own, speaker.question(&message));
        let call = call.filter(|call| self.routes.is_at(*call, member));
        self.tell(Tell::Question {
            session,
            call,
            question,
            message,
        });
    }

    /// A call has come to its end at a member.
    fn finish(&mut self, member: &str, call: CallKey, outcome: Outcome) {
        let link = self.links.get_mut(member);
        if link.is_some_and(|link| link.handle_refused(call)) {
            // Each call that waited for it gets an answer of its own.
            return;
        }
        let Some(route) = self.routes.take(call, member) else {
            return;
        };
        match route.purpose {
            Purpose::Client(method) => self.answer(member, call, method, outcome),
            Purpose::Subscribe { own, shown } => {
                let is_granted = match &outcome {
                    Outcome::Reply(message, _) => message.kind() == Kind::Result,
                    Outcome::Done => true,
                    Outcome::Failed(_) => false,
                };
                if !is_granted {
                    self.subscriptions.remove(&route.member, &own, &shown);
                }
                self.answer(member, call, Method::ResourcesSubscribe, outcome);
            }
            Purpose::Level => {}
            Purpose::TaskPage(of) => self.handle_task_page(member, of, call, outcome),
        }
        let is_leaving = self.links.get(member).is_some_and(Link::is_leaving);
        if is_leaving && !self.routes.has_any_at(member) {
            self.close_link(member);
        }
    }

    /// Returns to the client the answer to its call.
    fn answer(&mut self, member: &str, call: CallKey, method: Method, outcome: Outcome) {
        let Some(user) = &self.user else { return };
        let session = user.session;
        match outcome {
            Outcome::Reply(message, era) => {
                let message = self.spoken(member, message, |speaker, message| speaker.reply(message));
                self.reply(session, call, message, era);
            }
            Outcome::Done => self.tell(Tell::Done { session, call }),
            Outcome::Failed(failure) => {
                let at = self.view.position(member).unwrap_or(usize::MAX);
                let view = &self.view;
                match answers::of_failure(view, at, &user.client, user.era, method, failure) {
                    Failed::Answer((message, era)) => self.reply(session, call, message, era),
                    Failed::Failure(failure) => self.tell(Tell::Failed {
                        session,
                        call,
                        failure,
                    }),
                }
            }
        }
    }

    fn handle_task_page(&mut self, member: &str, of: CallKey, page: CallKey, outcome: Outcome) {
        let Some(user) = &self.user else { return };
        let (session, era) = (user.session, user.era);
        let at = self.view.position(member).unwrap_or(usize::MAX);
        let answer = match outcome {
            Outcome::Reply(message, _) => {
                Ok(self.spoken(member, message, |speaker, message| speaker.reply(message)))
            }
            Outcome::Done => return,
            Outcome::Failed(failure) => Err(failure),
        };
        match self.task_lists.handle_page(of, page, at, answer) {
            Step::Wait => {}
            Step::More(cursor) => {
                let page = self.routes.new_key();
                self.task_lists.await_page(of, page);
                let call = Call {
                    session,
                    call: of,
                    request: Request::Plain,
                    message: task_lists::page_request(None),
                    era,
                    mirrored: None,
                    reads_events: true,
                };
                if !self.ask_task_page(&call, at, page, Some(&cursor)) {
                    // A reload has removed the member: the list goes without its further pages.
                    self.handle_task_page(member, of, page, Outcome::Failed(Failure::Retired));
                }
            }
            Step::Done(tasks) => {
                let list = self.view.task_list(era, &tasks);
                self.reply(session, of, list, era);
            }
            Step::Failed(failure) => self.tell(Tell::Failed {
                session,
                call: of,
                failure,
            }),
        }
    }

    /// The instance of a member is lost, or there is none: its calls fail and its questions are
    /// withdrawn. The next ask opens the member anew. One that has subscriptions is opened at once.
    pub fn handle_lost_member(&mut self, member: &str, failure: &Failure) {
        let Some(link) = self.links.get_mut(member) else {
            return;
        };
        let was_open = link.is_open();
        link.close();
        self.withdraw_questions(member);
        for call in self.routes.at(member) {
            let outcome = Outcome::Failed(failure.clone());
            self.finish(member, call, outcome);
        }
        let is_wanted = was_open && !self.subscriptions.of(member).is_empty();
        if let Some(at) = self.view.position(member).filter(|_| is_wanted) {
            self.open_link(at);
        }
    }

    // From the catalogue.

    /// Shows this view from now on. The client is notified of each list that differs from the one
    /// that it was shown.
    pub fn handle_view(&mut self, now: Moment, view: Arc<View>) {
        let old = std::mem::replace(&mut self.view, view);
        self.links.handle_view(&self.view);
        for member in self.leaving() {
            self.close_link(&member);
        }
        let changed = ListKind::ALL.into_iter().filter(|kind| {
            old.shown_fingerprint(*kind, self.tools) != self.view.shown_fingerprint(*kind, self.tools)
        });
        let mut changed: Vec<Method> = changed.map(ListKind::changed).collect();
        // Resources and templates have one notification.
        changed.dedup();
        self.tell_changed(changed);
        self.open_subscribed();
        self.try_open(now);
        self.try_waiting(now);
    }

    /// Opens members anew that have subscriptions of the client, could not be opened when they were
    /// lost, and are there again.
    fn open_subscribed(&mut self) {
        if self.user.as_ref().is_none_or(User::is_closed) {
            return;
        }
        let lost: Vec<usize> = self
            .links
            .lost()
            .filter(|link| !self.subscriptions.of(link.member()).is_empty())
            // What is open there has an end of its own.
            .filter(|link| !self.routes.has_any_at(link.member()))
            .filter_map(|link| self.view.position(link.member()))
            .filter(|at| self.view.is_up(*at))
            .collect();
        for at in lost {
            self.open_link(at);
        }
    }

    /// Returns the members that the plan has no more and that have no open call.
    fn leaving(&self) -> Vec<MemberName> {
        let leaving = self.links.open().filter(|link| link.is_leaving());
        let idle = leaving.filter(|link| !self.routes.has_any_at(link.member()));
        idle.map(|link| link.member().clone()).collect()
    }

    fn tell_changed(&mut self, lists: impl IntoIterator<Item = Method>) {
        let Some(user) = &self.user else { return };
        if !user.wants_notifications || !matches!(user.stage, Stage::Open) {
            return;
        }
        let session = user.session;
        for list in lists {
            let message = backend_face::legacy::list_changed(list);
            self.tell(Tell::Notice { session, message });
        }
    }

    fn try_waiting(&mut self, now: Moment) {
        for waiting in std::mem::take(&mut self.waiting) {
            let waiting = self.direct(now, waiting);
            self.waiting.extend(waiting);
        }
    }

    /// Refuses what has waited for too long.
    pub fn handle_deadline(&mut self, now: Moment) {
        self.try_open(now);
        self.try_waiting(now);
    }

    // Outputs.

    fn tell(&mut self, tell: Tell) {
        self.outputs.push_back(ConversationOutput::Tell(tell));
    }

    fn reply(&mut self, session: SessionKey, call: CallKey, message: Message, era: Era) {
        self.tell(Tell::Reply {
            session,
            call,
            message,
            era,
        });
    }

    fn ask(&mut self, member: &MemberName, ask: Ask) {
        let member = member.clone();
        self.outputs.push_back(ConversationOutput::Ask { member, ask });
    }
}

/// How a call ended at its member.
#[derive(Debug)]
enum Outcome {
    Reply(Message, Era),
    Done,
    Failed(Failure),
}

impl User {
    fn is_closed(&self) -> bool {
        matches!(self.stage, Stage::Closed)
    }

    fn may_call(&self) -> bool {
        matches!(self.stage, Stage::Opening { .. } | Stage::Open)
    }
}

#[cfg(test)]
mod tests;
