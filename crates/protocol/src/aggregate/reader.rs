//! The reading of one member: all its lists to their end, and again when they change.
//!
//! To the member's instance an [`OfferReader`] is a user with a session key of its own. It asks for
//! lists and nothing else, answers no question, and keeps what it read before if the server fails. A
//! list that the server answers with an error is such a failure: it is kept, and asked for again.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::offer::{ListKind, Offer, OfferedList};
use super::plan::AggregateLimits;
use super::view::VIA;
use crate::client_face::{legacy, modern};
use crate::error_code;
use crate::exchange::{Ask, Call, CallKey, Client, Failure, Request, ServerInfo, SessionKey, Tell};
use crate::message::{Member, Message, quoted};
use crate::object::{Object, elements};
use crate::time::{Moment, earliest};

/// Aggregates that one list is known to have come through.
const MAX_VIA: usize = 64;
/// The pause before a list is asked for again that was answered with an error. It doubles with each
/// further error.
const RETRY: Duration = Duration::from_secs(1);
/// How often it doubles.
const MAX_DOUBLINGS: u32 = 5;
/// What is added to the reason of an error where clients are shown what was read before.
const KEPT: &str = "; what it listed before is shown";

/// Why a member could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadFailure {
    /// Its server gave no answer.
    Failed(Failure),
    /// Its server refused the handshake, with this message.
    Refused(String),
}

/// What the machine wants done.
#[derive(Debug)]
pub enum ReaderOutput {
    /// Something for the member's instance.
    Ask(Ask),
    /// What the member offers now.
    Offered(Arc<Offer>),
    /// The member could not be read. What it offered before still holds.
    Failed(ReadFailure),
}

/// The list that is being read.
#[derive(Debug)]
struct Reading {
    kind: ListKind,
    call: CallKey,
    pages: usize,
    bytes: usize,
    list: OfferedList,
}

/// How far the reader is.
#[derive(Debug)]
enum Stage {
    /// The instance was asked to open the user.
    Opening(CallKey),
    /// The server has declared itself.
    Open(Arc<ServerInfo>),
    /// The instance is lost, or refused.
    Closed,
}

/// The reader of one member.
///
/// [`Self::new`] returns the first ask. [`Self::handle_tell`] takes what the instance has for it,
/// and [`Self::poll_output`] returns what follows. The driver calls [`Self::handle_deadline`] at
/// [`Self::next_deadline`]. After [`ReaderOutput::Failed`] the reader waits for
/// [`Self::handle_changed`], which begins anew if the instance was lost.
#[derive(Debug)]
pub struct OfferReader {
    session: SessionKey,
    client: Arc<Client>,
    limits: AggregateLimits,
    stage: Stage,
    next_call: u64,
    reading: Option<Reading>,
    /// The lists that are to be read.
    stale: BTreeSet<ListKind>,
    /// Those that the server has since announced as changed.
    announced: BTreeSet<ListKind>,
    /// When these may be read. A server that announces a change at each reading, or again and
    /// again, is not read without a pause.
    not_before: Moment,
    /// Those that the server has answered with an error.
    refused: BTreeSet<ListKind>,
    /// When these are asked for again, and after how many errors in a row.
    retry: (Moment, u32),
    /// `None` where a list was never read.
    lists: [Option<OfferedList>; 4],
    /// The aggregates that they have come through.
    via: BTreeSet<String>,
    /// The fingerprint of what was given out last.
    given: Option<u64>,
    outputs: VecDeque<ReaderOutput>,
}

impl OfferReader {
    /// Returns a reader, whose first output opens a user of the member's instance. `known` is what
    /// the member offered last, if that is known.
    pub fn new(
        session: SessionKey,
        client: Arc<Client>,
        limits: &AggregateLimits,
        known: Option<&Offer>,
    ) -> Self {
        let read = |kind: ListKind| {
            let list = known.map(|offer| offer.list(kind));
            list.filter(|list| list.holds()).cloned()
        };
        let mut reader = Self {
            session,
            client,
            limits: *limits,
            stage: Stage::Closed,
            next_call: 0,
            reading: None,
            stale: BTreeSet::new(),
            announced: BTreeSet::new(),
            not_before: Moment::START,
            refused: BTreeSet::new(),
            retry: (Moment::START, 0),
            lists: ListKind::ALL.map(read),
            via: BTreeSet::new(),
            given: None,
            outputs: VecDeque::new(),
        };
        reader.open();
        reader
    }

    /// Returns the key under which the instance knows it.
    pub fn session(&self) -> SessionKey {
        self.session
    }

    /// Returns what is to be done next.
    pub fn poll_output(&mut self) -> Option<ReaderOutput> {
        self.outputs.pop_front()
    }

    fn new_call(&mut self) -> CallKey {
        let call = CallKey(self.next_call);
        self.next_call += 1;
        call
    }

    fn ask(&mut self, ask: Ask) {
        self.outputs.push_back(ReaderOutput::Ask(ask));
    }

    fn open(&mut self) {
        let call = self.new_call();
        self.stage = Stage::Opening(call);
        let open = Ask::Open {
            session: self.session,
            call,
            client: Arc::clone(&self.client),
            initialize: None,
            era: modern::ERA,
            wants_notifications: true,
        };
        self.ask(open);
    }

    /// Returns when [`Self::handle_deadline`] is to be called.
    pub fn next_deadline(&self) -> Option<Moment> {
        let is_waiting = matches!(self.stage, Stage::Open(_)) && self.reading.is_none();
        if !is_waiting {
            return None;
        }
        let announced = (!self.announced.is_empty()).then_some(self.not_before);
        let refused = (!self.refused.is_empty()).then_some(self.retry.0);
        earliest(announced, refused)
    }

    /// Reads what was announced as changed, and asks again for what was refused, if it is time.
    pub fn handle_deadline(&mut self, now: Moment) {
        if self.next_deadline().is_none_or(|due| due > now) {
            return;
        }
        if self.not_before <= now {
            self.not_before = now.after(self.limits.coalesce);
            self.stale.append(&mut self.announced);
        }
        if self.retry.0 <= now {
            self.stale.append(&mut self.refused);
        }
        self.go_on();
    }

    /// Takes what the instance has for the reader.
    pub fn handle_tell(&mut self, now: Moment, tell: Tell) {
        let session = self.session;
        match tell {
            Tell::Opened { server_info, .. } => {
                self.stage = Stage::Open(server_info);
                self.via.clear();
                self.announced.clear();
                self.refused.clear();
                self.not_before = now.after(self.limits.coalesce);
                self.stale.extend(ListKind::ALL);
                self.go_on();
            }
            Tell::Reply { call, message, .. } => self.handle_reply(now, call, &message),
            Tell::Failed { call, failure, .. } => {
                let is_opening = matches!(self.stage, Stage::Opening(opening) if opening == call);
                if is_opening {
                    self.stage = Stage::Closed;
                }
                if is_opening || self.reading.take_if(|reading| reading.call == call).is_some() {
                    self.fail(ReadFailure::Failed(failure));
                }
            }
            Tell::Notice { message, .. } => {
                let changed = ListKind::ALL.into_iter();
                let changed = changed.filter(|kind| kind.changed() == message.method());
                self.announced.extend(changed);
                self.handle_deadline(now);
            }
            Tell::Question { question, .. } => self.ask(Ask::Unanswerable { session, question }),
            Tell::Done { .. } | Tell::Related { .. } | Tell::Waiting { .. } | Tell::Withdrawn { .. } => {}
        }
    }

    fn fail(&mut self, failure: ReadFailure) {
        self.stale.clear();
        self.announced.clear();
        self.refused.clear();
        self.outputs.push_back(ReaderOutput::Failed(failure));
    }

    /// The instance has lost its state, or is gone.
    pub fn handle_lost_instance(&mut self, failure: &Failure) {
        self.stage = Stage::Closed;
        self.reading = None;
        self.fail(ReadFailure::Failed(failure.clone()));
    }

    /// A list may have changed, or all of them: reads it again.
    pub fn handle_changed(&mut self, kind: Option<ListKind>) {
        match (&self.stage, kind) {
            (Stage::Closed, _) => self.open(),
            (Stage::Opening(_), _) => {}
            (Stage::Open(_), Some(kind)) => {
                self.stale.insert(kind);
                self.go_on();
            }
            (Stage::Open(_), None) => {
                self.stale.extend(ListKind::ALL);
                self.go_on();
            }
        }
    }

    /// Ends the reader. Returns the last ask for its instance.
    pub fn close(&mut self) -> Ask {
        self.stage = Stage::Closed;
        self.reading = None;
        let session = self.session;
        Ask::Close { session }
    }

    /// Begins with the next list that is to be read, or returns the offer if there is none.
    fn go_on(&mut self) {
        let Stage::Open(server) = &self.stage else {
            return;
        };
        if self.reading.is_some() {
            return;
        }
        let server = Arc::clone(server);
        while let Some(kind) = self.stale.pop_first() {
            if server.declares(kind.method()) {
                let call = self.new_call();
                self.reading = Some(Reading {
                    kind,
                    call,
                    pages: 0,
                    bytes: 0,
                    list: OfferedList::default(),
                });
                return self.ask_page(kind, call, None);
            }
            self.put(kind, OfferedList::default());
        }
        let lists = self.lists.clone().map(Option::unwrap_or_default);
        let offer = Offer::new(server, lists).through(self.via.clone());
        if self.given.replace(offer.fingerprint()) != Some(offer.fingerprint()) {
            self.outputs.push_back(ReaderOutput::Offered(Arc::new(offer)));
        }
    }

    fn place(&mut self, kind: ListKind) -> &mut Option<OfferedList> {
        let [tools, prompts, resources, templates] = &mut self.lists;
        match kind {
            ListKind::Tools => tools,
            ListKind::Prompts => prompts,
            ListKind::Resources => resources,
            ListKind::Templates => templates,
        }
    }

    fn put(&mut self, kind: ListKind, list: OfferedList) {
        *self.place(kind) = Some(list);
    }

    /// Notes why a list could not be read. What was read of it before still holds.
    fn put_unread(&mut self, kind: ListKind, reason: String) {
        let place = self.place(kind);
        let known = place.take().filter(OfferedList::holds);
        *place = Some(match known {
            Some(known) => OfferedList {
                withheld: Some(reason + KEPT),
                ..known
            },
            None => OfferedList {
                withheld: Some(reason),
                ..OfferedList::default()
            },
        });
    }

    fn ask_page(&mut self, kind: ListKind, call: CallKey, cursor: Option<&str>) {
        let method = kind.method().name().unwrap_or_default();
        let params = cursor.map_or_else(
            || "{}".to_owned(),
            |cursor| format!(r#"{{"cursor":{}}}"#, quoted(cursor)),
        );
        let text = format!(r#"{{"jsonrpc":"2.0","id":0,"method":"{method}","params":{params}}}"#);
        let call = Ask::Call(Call {
            session: self.session,
            call,
            request: Request::Plain,
            message: Message::own(text),
            era: legacy::ERA,
            mirrored: None,
            reads_events: true,
        });
        self.ask(call);
    }

    fn handle_reply(&mut self, now: Moment, call: CallKey, message: &Message) {
        if matches!(self.stage, Stage::Opening(opening) if opening == call) {
            self.stage = Stage::Closed;
            let refusal = message.object(Member::Error).text("message");
            return self.fail(ReadFailure::Refused(refusal.unwrap_or_default()));
        }
        let Some(mut reading) = self.reading.take_if(|reading| reading.call == call) else {
            return;
        };
        let kind = reading.kind;
        let room = MAX_VIA.saturating_sub(self.via.len());
        self.via.extend(via_of(message).into_iter().take(room));
        match reading.add(message, &self.limits) {
            Page::More(cursor) => {
                reading.call = self.new_call();
                let call = reading.call;
                self.reading = Some(reading);
                self.ask_page(kind, call, Some(&cursor));
            }
            Page::Last => {
                self.put(kind, reading.list);
                if self.refused.is_empty() {
                    self.retry.1 = 0;
                }
                self.go_on();
            }
            Page::Refused(reason) => {
                self.put_unread(kind, reason);
                if self.refused.is_empty() {
                    let (_, errors) = self.retry;
                    let pause = RETRY * (1 << errors.min(MAX_DOUBLINGS));
                    self.retry = (now.after(pause), errors + 1);
                }
                self.refused.insert(kind);
                self.go_on();
            }
            Page::Unread(reason) => {
                self.put_unread(kind, reason);
                self.go_on();
            }
            Page::Withheld(reason) => {
                let withheld = Some(reason);
                self.put(
                    kind,
                    OfferedList {
                        withheld,
                        ..OfferedList::default()
                    },
                );
                self.go_on();
            }
        }
    }
}

/// Returns the aggregates that a list has come through.
fn via_of(message: &Message) -> Vec<String> {
    let result = message.object(Member::Result);
    let meta = result.get("_meta").unwrap_or("{}");
    let meta = Object::parse(meta.as_bytes()).unwrap_or_default();
    let via: Option<Vec<String>> = meta.get(VIA).and_then(|raw| serde_json::from_str(raw).ok());
    via.unwrap_or_default()
}

/// What follows one page.
enum Page {
    More(String),
    Last,
    /// The server has answered with an error, for this reason: it may give the list later.
    Refused(String),
    /// Its answer cannot be read, for this reason.
    Unread(String),
    /// The list is not shown, for this reason.
    Withheld(String),
}

impl Reading {
    fn add(&mut self, message: &Message, limits: &AggregateLimits) -> Page {
        let method = self.kind.method().name().unwrap_or_default();
        if message.raw(Member::Error).is_some() {
            let error = message.object(Member::Error);
            // Servers with resources need not have templates.
            if error.get("code") == Some(itoa::Buffer::new().format(error_code::METHOD_NOT_FOUND)) {
                return Page::Last;
            }
            let text = error.text("message").unwrap_or_default();
            return Page::Refused(format!("the server answers `{method}` with an error: {text}"));
        }
        let result = message.object(Member::Result);
        let Some(items) = result.get(self.kind.member()).and_then(elements) else {
            return Page::Unread(format!("the server's answer to `{method}` is no list"));
        };
        self.pages += 1;
        self.bytes += items.iter().map(|item| item.len()).sum::<usize>();
        self.list.items.extend(items.into_iter().map(Box::from));
        // The first page decides; a later one can only be stricter.
        let ttl = result.get("ttlMs").and_then(|raw| raw.parse().ok()).unwrap_or(0);
        let public = result.text("cacheScope").as_deref() == Some("public");
        self.list.ttl = if self.pages == 1 {
            ttl
        } else {
            self.list.ttl.min(ttl)
        };
        self.list.public = public && (self.pages == 1 || self.list.public);
        let cursor = result.text("nextCursor").filter(|cursor| !cursor.is_empty());
        let beyond = [
            (self.list.items.len() > limits.items, "items", limits.items),
            (self.bytes > limits.bytes, "bytes", limits.bytes),
            (
                cursor.is_some() && self.pages >= limits.pages,
                "pages",
                limits.pages,
            ),
        ];
        match (beyond.into_iter().find(|(is_beyond, ..)| *is_beyond), cursor) {
            (Some((_, what, limit)), _) => {
                Page::Withheld(format!("the server's `{method}` has more than {limit} {what}"))
            }
            (None, Some(cursor)) => Page::More(cursor),
            (None, None) => Page::Last,
        }
    }
}

#[cfg(test)]
mod tests;
