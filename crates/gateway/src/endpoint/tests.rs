//! What holds while several threads open, evict and end sessions at once.

use std::sync::Barrier;
use std::thread;

use protocol::eviction::Usage;

use super::*;
use crate::fixture;

const THREADS: usize = 4;

/// Runs `work` on several threads at once, inside the runtime.
fn on_threads(work: impl Fn(usize) + Sync) {
    let runtime = tokio::runtime::Handle::current();
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (runtime, start, work) = (runtime.clone(), &start, &work);
            scope.spawn(move || {
                let _inside = runtime.enter();
                start.wait();
                work(number);
            });
        }
    });
}

fn open(destination: &Endpoint) -> Result<Arc<SessionHandle>, Refusal> {
    let opening = SessionOpen::Implicit(Version::ASSUMED);
    let opened = destination.open(Principal::anonymous(), &HeaderMap::new(), opening);
    opened.map(|(handle, _)| handle)
}

/// Returns the keys of the sessions that instances know of.
fn known_to_instances(destination: &Endpoint) -> Vec<SessionKey> {
    let instances = destination.upstream.instances_by_key().into_iter();
    let users = instances.filter_map(|(_, instance, _)| instance.users());
    let mut users: Vec<SessionKey> = users.flatten().collect();
    users.sort_unstable();
    users
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_that_open_and_end_sessions_keep_to_the_limit_and_leave_none_behind() {
    const TURNS: usize = 2_000;
    let settings = fixture::settings();
    let destination = fixture::destination(&settings);
    let limit = destination.max_sessions();
    on_threads(|number| {
        for _ in 0..TURNS {
            if number == 0 {
                destination.dismiss(|_| true);
            } else {
                // Refused while all places are taken.
                let _ = open(&destination);
            }
            let open = destination.sessions().len();
            assert!(open <= limit, "{open} sessions, {limit} are allowed");
        }
    });
    let mut open: Vec<SessionKey> = destination
        .sessions()
        .values()
        .map(|handle| handle.key())
        .collect();
    open.sort_unstable();
    assert_eq!(known_to_instances(&destination), open);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_that_is_opened_while_its_destination_ends_is_ended_too() {
    for _ in 0..100 {
        let settings = fixture::settings();
        let destination = fixture::destination(&settings);
        on_threads(|number| match number {
            0 => destination.stop(CloseReason::Replaced),
            _ => drop(open(&destination)),
        });
        assert_eq!(destination.sessions().len(), 0);
        assert_eq!(known_to_instances(&destination), []);
        destination.upstream.supervisors_ended().await;
    }
}

#[tokio::test]
async fn session_whose_client_has_come_back_is_not_evicted() {
    let settings = fixture::settings();
    let destination = fixture::destination(&settings);
    let handle = open(&destination).expect("there is room");
    assert_eq!(handle.usage(), Usage::Active, "its handshake is under way");
    let seen_before = Usage::StreamClosed(Moment::START);
    assert!(!destination.evict(&handle, seen_before));
    assert_eq!(destination.sessions().len(), 1);
    assert!(destination.evict(&handle, Usage::Active));
    assert_eq!(destination.sessions().len(), 0);
}
