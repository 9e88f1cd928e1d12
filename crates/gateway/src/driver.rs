//! How a machine is driven: it is called under its lock, and its outputs are carried out after the
//! lock.
//!
//! The outputs of a machine form one queue, in the order in which the machine gave them. One caller
//! at a time drains the queue, so that no output overtakes another, neither across threads nor when
//! carrying out an output calls the same machine again. The caller drains, so that no task is woken
//! for it. A caller that finds another one draining appends its outputs and returns: the state of
//! the machine has changed by then, its outputs may still be under way.
//!
//! A thread locks one machine at a time: with two, two threads could wait for each other. Builds
//! with debug assertions, which all tests run, panic where a thread would lock a second one.
//!
//! A panic ends neither the draining nor the outputs after it. It goes on to the caller when the
//! queue is empty.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

/// Outputs in their order. A call of a machine seldom has more than two.
pub(crate) type Outputs<O> = SmallVec<[O; 2]>;

type Panic = Box<dyn Any + Send>;

/// State that takes facts and returns outputs.
pub(crate) trait Machine {
    /// Something to be done when the lock is released.
    type Output;

    /// Returns the next output, until there is none.
    fn poll_output(&mut self) -> Option<Self::Output>;

    /// Brings the machine back to a state that it can go on from. A call has panicked half-way.
    fn handle_panic(&mut self) {}

    /// Moves all outputs to the end of `outputs`.
    fn poll_outputs(&mut self, outputs: &mut Outputs<Self::Output>) {
        while let Some(output) = self.poll_output() {
            outputs.push(output);
        }
    }
}

/// A machine, its lock, and the queue of its outputs.
pub(crate) struct Driver<M: Machine> {
    state: Mutex<DriverState<M>>,
}

struct DriverState<M: Machine> {
    machine: M,
    /// Outputs that were given while a caller drains. It takes them next.
    waiting: Vec<M::Output>,
    is_draining: bool,
}

/// The machine under its lock, to be read, or changed where that has no outputs.
pub(crate) struct Locked<'a, M: Machine>(StateGuard<'a, M>);

impl<M: Machine> std::ops::Deref for Locked<'_, M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.0.machine
    }
}

impl<M: Machine> std::ops::DerefMut for Locked<'_, M> {
    fn deref_mut(&mut self) -> &mut M {
        &mut self.0.machine
    }
}

/// The lock of one driver.
struct StateGuard<'a, M: Machine> {
    state: MutexGuard<'a, DriverState<M>>,
    _only: OnlyLock,
}

impl<M: Machine> std::ops::Deref for StateGuard<'_, M> {
    type Target = DriverState<M>;

    fn deref(&self) -> &DriverState<M> {
        &self.state
    }
}

impl<M: Machine> std::ops::DerefMut for StateGuard<'_, M> {
    fn deref_mut(&mut self) -> &mut DriverState<M> {
        &mut self.state
    }
}

thread_local! {
    static HAS_LOCKED: Cell<bool> = const { Cell::new(false) };
}

/// Notes that this thread has locked a machine. Costs nothing without debug assertions.
struct OnlyLock;

impl OnlyLock {
    fn take() -> Self {
        debug_assert!(!HAS_LOCKED.replace(true), "a machine is locked under another");
        Self
    }
}

impl Drop for OnlyLock {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            HAS_LOCKED.set(false);
        }
    }
}

impl<M: Machine> Driver<M> {
    pub(crate) fn new(machine: M) -> Self {
        Self {
            state: Mutex::new(DriverState {
                machine,
                waiting: Vec::new(),
                is_draining: false,
            }),
        }
    }

    /// Locks the machine. Outputs that come of it wait for the next [`Driver::act`].
    pub(crate) fn lock(&self) -> Locked<'_, M> {
        Locked(self.state())
    }

    fn state(&self) -> StateGuard<'_, M> {
        let only = OnlyLock::take();
        StateGuard {
            state: self.state.lock(),
            _only: only,
        }
    }

    /// Returns whether a caller carries out outputs at this moment.
    pub(crate) fn is_draining(&self) -> bool {
        self.state().is_draining
    }

    /// Calls the machine under its lock, and carries out what comes of it after the lock. `act` may
    /// put outputs of its own in front of those that the machine still has.
    pub(crate) fn act<T>(
        &self,
        act: impl FnOnce(&mut M, &mut Outputs<M::Output>) -> T,
        carry_out: impl Fn(M::Output),
    ) -> T {
        let mut outputs = Outputs::new();
        let acted = {
            let mut guard = self.state();
            let state = &mut *guard;
            let machine = &mut state.machine;
            let acted = catch_unwind(AssertUnwindSafe(|| act(machine, &mut outputs)));
            if acted.is_err() {
                machine.handle_panic();
            }
            machine.poll_outputs(&mut outputs);
            if state.is_draining {
                state.waiting.extend(outputs.drain(..));
            } else {
                state.is_draining = !outputs.is_empty();
            }
            acted
        };
        let panic = match outputs.is_empty() {
            true => None,
            false => self.drain(outputs, carry_out),
        };
        match (acted, panic) {
            (Ok(acted), None) => acted,
            (Err(panic), _) | (Ok(_), Some(panic)) => resume_unwind(panic),
        }
    }

    /// Carries out these outputs and those that come meanwhile. Returns the first panic.
    fn drain(&self, mut outputs: Outputs<M::Output>, carry_out: impl Fn(M::Output)) -> Option<Panic> {
        let mut first = None;
        loop {
            let mut rest = outputs.into_iter();
            while let Err(panic) = catch_unwind(AssertUnwindSafe(|| rest.by_ref().for_each(&carry_out))) {
                first.get_or_insert(panic);
            }
            let mut guard = self.state();
            let state = &mut *guard;
            if state.waiting.is_empty() {
                state.is_draining = false;
                return first;
            }
            outputs = Outputs::from_vec(std::mem::take(&mut state.waiting));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Barrier};

    use super::*;

    /// Numbers its outputs in the order in which it gives them.
    #[derive(Default)]
    struct Numbers {
        next: u64,
        outputs: VecDeque<u64>,
        panics: u64,
    }

    impl Numbers {
        fn give(&mut self) -> u64 {
            self.next += 1;
            self.outputs.push_back(self.next);
            self.next
        }

        fn give_many(&mut self, count: u64) {
            for _ in 0..count {
                self.give();
            }
        }
    }

    impl Machine for Numbers {
        type Output = u64;

        fn poll_output(&mut self) -> Option<u64> {
            self.outputs.pop_front()
        }

        fn handle_panic(&mut self) {
            self.panics += 1;
        }
    }

    /// A driver and what was carried out.
    struct Driven {
        driver: Driver<Numbers>,
        done: Mutex<Vec<u64>>,
    }

    impl Driven {
        fn new() -> Self {
            Self {
                driver: Driver::new(Numbers::default()),
                done: Mutex::default(),
            }
        }

        fn note(&self, output: u64) {
            self.done.lock().push(output);
        }

        fn done(&self) -> Vec<u64> {
            self.done.lock().clone()
        }

        fn is_at_rest(&self) -> bool {
            let state = self.driver.state();
            !state.is_draining && state.waiting.is_empty() && state.machine.outputs.is_empty()
        }
    }

    #[test]
    fn call_inside_a_delivery_goes_to_the_end_of_the_queue() {
        let driven = Driven::new();
        let give_two = |machine: &mut Numbers, _: &mut Outputs<u64>| {
            machine.give();
            machine.give();
        };
        driven.driver.act(give_two, |output| {
            driven.note(output);
            if output <= 2 {
                driven
                    .driver
                    .act(give_two, |_| unreachable!("another caller drains"));
            }
        });
        assert_eq!(driven.done(), (1..=6).collect::<Vec<u64>>());
        assert!(driven.is_at_rest());
    }

    #[test]
    #[cfg(debug_assertions)]
    fn machine_that_is_locked_under_another_is_noticed() {
        let (outer, inner) = (Driven::new(), Driven::new());
        let nested = || {
            let _held = outer.driver.lock();
            inner.driver.lock().next
        };
        catch_unwind(AssertUnwindSafe(nested)).expect_err("two at once");
        for driven in [&outer, &inner] {
            assert_eq!(driven.driver.lock().next, 0, "both can be locked again");
        }
        outer.driver.act(
            |machine, _| machine.give(),
            |output| assert_eq!(inner.driver.lock().next + 1, output, "after the lock"),
        );
    }

    #[test]
    fn outputs_of_the_caller_go_before_those_left_in_the_machine() {
        let driven = Driven::new();
        driven.driver.act(
            |machine, outputs| {
                machine.give();
                outputs.push(100);
            },
            |output| driven.note(output),
        );
        assert_eq!(driven.done(), [100, 1]);
    }

    #[test]
    fn outputs_of_many_threads_keep_their_order_and_none_is_lost() {
        const THREADS: u64 = 4;
        const CALLS: u64 = 5_000;
        let driven = Arc::new(Driven::new());
        let start = Arc::new(Barrier::new(THREADS as usize));
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let (driven, start) = (Arc::clone(&driven), Arc::clone(&start));
                std::thread::spawn(move || {
                    start.wait();
                    for call in 0..CALLS {
                        let given = driven.driver.act(
                            |machine, _| {
                                let first = machine.give();
                                if call % 3 == 0 {
                                    machine.give();
                                }
                                first
                            },
                            |output| {
                                driven.note(output);
                                if output % 7 == 0 && output <= THREADS * CALLS {
                                    driven
                                        .driver
                                        .act(|machine, _| machine.give(), |_| unreachable!("it is nested"));
                                }
                            },
                        );
                        assert!(given > 0);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no thread panics");
        }
        let given = driven.driver.lock().next;
        assert!(given > THREADS * CALLS);
        assert!(driven.done().into_iter().eq(1..=given), "each once, in order");
        assert!(driven.is_at_rest());
    }

    #[test]
    fn panic_while_an_output_is_carried_out_costs_no_other_output() {
        let driven = Driven::new();
        let acted = catch_unwind(AssertUnwindSafe(|| {
            driven.driver.act(
                |machine, _| machine.give_many(5),
                |output| {
                    assert!(output % 2 == 1, "an even number");
                    driven.note(output);
                },
            );
        }));
        acted.expect_err("the panic goes on to the caller");
        assert_eq!(driven.done(), [1, 3, 5]);
        assert!(driven.is_at_rest());
        driven
            .driver
            .act(|machine, _| machine.give(), |output| driven.note(output));
        assert_eq!(driven.done(), [1, 3, 5, 6]);
        assert_eq!(driven.driver.lock().panics, 0, "the machine did nothing wrong");
    }

    #[test]
    fn panic_in_the_machine_loses_none_of_its_outputs() {
        let driven = Driven::new();
        let acted = catch_unwind(AssertUnwindSafe(|| {
            driven.driver.act(
                |machine, _| {
                    machine.give();
                    assert!(machine.next == 0, "half-way");
                },
                |output| driven.note(output),
            );
        }));
        acted.expect_err("the panic goes on to the caller");
        assert_eq!(driven.done(), [1]);
        assert_eq!(driven.driver.lock().panics, 1);
        assert!(driven.is_at_rest());
    }

    #[test]
    fn panic_in_a_nested_call_loses_nothing_of_the_outer_one() {
        let driven = Driven::new();
        let acted = catch_unwind(AssertUnwindSafe(|| {
            driven.driver.act(
                |machine, _| machine.give_many(3),
                |output| {
                    driven.note(output);
                    if output == 1 {
                        driven.driver.act(
                            |machine, _| {
                                machine.give();
                                assert!(machine.next == 0, "half-way");
                            },
                            |_| unreachable!("another caller drains"),
                        );
                    }
                },
            );
        }));
        acted.expect_err("the panic goes on to the caller");
        assert_eq!(driven.done(), [1, 2, 3, 4]);
        assert!(driven.is_at_rest());
    }
}
