//! Lists of tasks that are gathered from several members, page by page, for one call of the client.

use std::collections::{BTreeMap, BTreeSet};

use crate::exchange::{CallKey, Failure};
use crate::message::{Kind, Member, Message, quoted};
use crate::object::elements;
use crate::vec_map::VecMap;

/// Pages of one member.
const MAX_PAGES: usize = 64;
/// Tasks of all members.
const MAX_TASKS: usize = 10_000;
const REFUSED: &str = "no member has listed its tasks";

/// One list.
#[derive(Debug, Default)]
struct MergedList {
    /// The pages that are awaited.
    open: BTreeSet<CallKey>,
    /// The raw tasks of each member, in the members' order, and how many pages it gave.
    tasks: BTreeMap<usize, (usize, Vec<String>)>,
    count: usize,
    /// Why the first member that gave no answer gave none.
    failure: Option<Failure>,
}

/// What follows an answer.
#[derive(Debug)]
pub(super) enum Step {
    /// Other members have not answered.
    Wait,
    /// The member has more, behind this cursor.
    More(String),
    /// All have answered: these are the tasks.
    Done(Vec<String>),
    /// None has answered.
    Failed(Failure),
}

/// All lists that are being gathered, by the client's call.
#[derive(Debug, Default)]
pub(super) struct TaskLists(VecMap<CallKey, MergedList>);

impl TaskLists {
    /// Begins a list, which awaits these pages.
    pub(super) fn begin(&mut self, call: CallKey, pages: impl Iterator<Item = CallKey>) {
        let open = pages.collect();
        let list = MergedList {
            open,
            ..MergedList::default()
        };
        self.0.insert(call, list);
    }

    /// Awaits one more page.
    pub(super) fn await_page(&mut self, call: CallKey, page: CallKey) {
        if let Some(list) = self.0.get_mut(&call) {
            list.open.insert(page);
        }
    }

    /// Forgets a list that the client no longer wants. Returns the pages that are awaited.
    pub(super) fn cancel(&mut self, call: CallKey) -> Option<BTreeSet<CallKey>> {
        self.0.remove(&call).map(|list| list.open)
    }

    /// Forgets all lists. Returns the calls of the client that they are for.
    pub(super) fn take_calls(&mut self) -> Vec<CallKey> {
        let lists = std::mem::take(&mut self.0);
        lists.iter().map(|(call, _)| *call).collect()
    }

    /// Takes a page of the member at this position, rewritten for the client.
    pub(super) fn handle_page(
        &mut self,
        call: CallKey,
        page: CallKey,
        at: usize,
        answer: Result<Message, Failure>,
    ) -> Step {
        let Some(list) = self.0.get_mut(&call) else {
            return Step::Wait;
        };
        if !list.open.remove(&page) {
            return Step::Wait;
        }
        match answer {
            Ok(message) if message.kind() == Kind::Result => {
                if let Some(cursor) = list.add(at, &message) {
                    return Step::More(cursor);
                }
            }
            Ok(_) => list.note(Failure::Unsupported { what: REFUSED }),
            Err(failure) => list.note(failure),
        }
        if !list.open.is_empty() {
            return Step::Wait;
        }
        let list = self.0.remove(&call).unwrap_or_default();
        match list.failure {
            // An empty list would mean that there are no tasks.
            Some(failure) if list.tasks.is_empty() => Step::Failed(failure),
            Some(_) | None => {
                let tasks = list.tasks.into_values();
                Step::Done(tasks.flat_map(|(_, tasks)| tasks).collect())
            }
        }
    }
}

impl MergedList {
    /// Adds a page. Returns the cursor of the next one, if it is to be read.
    fn add(&mut self, at: usize, message: &Message) -> Option<String> {
        let result = message.object(Member::Result);
        let listed = result.get("tasks").and_then(elements).unwrap_or_default();
        let room = MAX_TASKS.saturating_sub(self.count);
        let (pages, tasks) = self.tasks.entry(at).or_default();
        *pages += 1;
        self.count += listed.len().min(room);
        tasks.extend(listed.into_iter().take(room).map(str::to_owned));
        let has_room = *pages < MAX_PAGES && self.count < MAX_TASKS;
        result
            .text("nextCursor")
            .filter(|cursor| has_room && !cursor.is_empty())
    }

    fn note(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }
}

/// Returns the request for a page.
pub(super) fn page_request(cursor: Option<&str>) -> Message {
    let params = cursor.map(|cursor| format!(r#""cursor":{}"#, quoted(cursor)));
    let params = params.unwrap_or_default();
    Message::own(format!(
        r#"{{"jsonrpc":"2.0","id":0,"method":"tasks/list","params":{{{params}}}}}"#
    ))
}
