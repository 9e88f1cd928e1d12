//! What the worlds share: the engine's manners, and the order of events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use cluster::{Node, NodeId};

use crate::random::Random;

/// How long the driver waits for the engine.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// How the engine answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Within two milliseconds.
    Fast,
    /// Within a fifth of a second.
    Slow,
    /// Within a second and a half: later than requests wait.
    Late,
    /// Not at all, for ten seconds of each twenty.
    Away,
}

impl Manner {
    /// Returns how long one way takes; `None` if nothing arrives.
    pub(crate) fn way(self, now: Duration, random: &mut Random) -> Option<Duration> {
        let ms = Duration::from_millis;
        match self {
            Self::Fast => Some(random.time((Duration::ZERO, ms(1)))),
            Self::Slow => Some(random.time((ms(5), ms(100)))),
            Self::Late => Some(random.time((ms(100), ms(750)))),
            Self::Away if now.as_secs() % 20 >= 10 => None,
            Self::Away => Some(random.time((Duration::ZERO, ms(1)))),
        }
    }
}

/// Events in the order of their times, and of their making.
pub(crate) struct Events<E> {
    heap: BinaryHeap<Reverse<(Duration, u64)>>,
    events: std::collections::HashMap<u64, E>,
    made: u64,
}

impl<E> Events<E> {
    pub(crate) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            events: std::collections::HashMap::new(),
            made: 0,
        }
    }

    pub(crate) fn add(&mut self, at: Duration, event: E) {
        self.made += 1;
        self.heap.push(Reverse((at, self.made)));
        self.events.insert(self.made, event);
    }

    pub(crate) fn next(&mut self) -> Option<(Duration, E)> {
        let Reverse((at, number)) = self.heap.pop()?;
        Some((at, self.events.remove(&number).unwrap()))
    }
}

pub(crate) fn node(name: &str) -> Node {
    Node {
        id: NodeId::generate(name).unwrap(),
        address: None,
        program: "0.1.0".to_owned(),
        is_draining: false,
    }
}
