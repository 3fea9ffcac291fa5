//! Locks and `watch` channels, one at a time.
//!
//! A thread that waits for a lock while it holds another can wait for ever, and everybody who needs the first one waits
//! with it. So no guard of a lock or of a channel lives across another lock, a send, or a call out of its module.
//!
//! Only this module calls the methods that hand out guards: `clippy.toml` disallows them everywhere else. What is in a
//! channel is copied out. With debug assertions, and so in every test, a thread that takes a second guard or sends while
//! it holds one panics.

#![expect(clippy::disallowed_methods, reason = "here are the calls that are disallowed elsewhere")]

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;

/// A guard of a lock, and the only one of its thread.
#[derive(Debug)]
pub struct Guard<G> {
    guard: G,
    _only: OnlyGuard,
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// Locks. A poisoned lock guards plain data that is whole after every statement.
#[track_caller]
pub fn lock<T>(mutex: &Mutex<T>) -> Guard<MutexGuard<'_, T>> {
    let only = OnlyGuard::take();
    Guard { guard: mutex.lock().unwrap_or_else(PoisonError::into_inner), _only: only }
}

/// Locks for reading.
#[track_caller]
pub fn read<T>(lock: &RwLock<T>) -> Guard<RwLockReadGuard<'_, T>> {
    let only = OnlyGuard::take();
    Guard { guard: lock.read().unwrap_or_else(PoisonError::into_inner), _only: only }
}

/// Locks for writing.
#[track_caller]
pub fn write<T>(lock: &RwLock<T>) -> Guard<RwLockWriteGuard<'_, T>> {
    let only = OnlyGuard::take();
    Guard { guard: lock.write().unwrap_or_else(PoisonError::into_inner), _only: only }
}

/// A copy of what a channel holds.
#[track_caller]
pub fn current<T: Clone>(receiver: &watch::Receiver<T>) -> T {
    peek(receiver, T::clone)
}

/// The same, and marks it as seen.
#[track_caller]
pub fn newest<T: Clone>(receiver: &mut watch::Receiver<T>) -> T {
    peek_newest(receiver, T::clone)
}

/// What is read out of what a channel holds. `read` takes no lock and sends nothing.
#[track_caller]
pub fn peek<T, R>(receiver: &watch::Receiver<T>, read: impl FnOnce(&T) -> R) -> R {
    let _only = OnlyGuard::take();
    read(&receiver.borrow())
}

/// The same, and marks it as seen.
#[track_caller]
pub fn peek_newest<T, R>(receiver: &mut watch::Receiver<T>, read: impl FnOnce(&T) -> R) -> R {
    let _only = OnlyGuard::take();
    read(&receiver.borrow_and_update())
}

/// Sends, also where it is the same again.
#[track_caller]
pub fn send<T>(sender: &watch::Sender<T>, value: T) {
    let _only = OnlyGuard::take();
    drop(sender.send_replace(value));
}

/// Sends what is new, and returns what was there before; `None` if it is the same.
#[track_caller]
pub fn send_new<T: PartialEq>(sender: &watch::Sender<T>, value: T) -> Option<T> {
    change(sender, |held| if *held == value { None } else { Some(std::mem::replace(held, value)) })
}

/// Changes what a channel holds, and tells others if `change` returns something. It takes no lock and sends nothing.
#[track_caller]
pub fn change<T, R>(sender: &watch::Sender<T>, change: impl FnOnce(&mut T) -> Option<R>) -> Option<R> {
    let _only = OnlyGuard::take();
    let mut changed = None;
    sender.send_if_modified(|held| {
        changed = change(held);
        changed.is_some()
    });
    changed
}

/// Moves a counter on.
#[track_caller]
pub fn count(sender: &watch::Sender<u64>) {
    change(sender, |held| {
        *held += 1;
        Some(())
    });
}

/// Moves a counter on that is `None` before the first list.
#[track_caller]
pub fn count_lists(sender: &watch::Sender<Option<u64>>) {
    change(sender, |held| {
        *held = Some(held.unwrap_or(0) + 1);
        Some(())
    });
}

/// That a thread holds one guard, and no second one.
#[derive(Debug)]
struct OnlyGuard;

#[cfg(debug_assertions)]
thread_local! {
    static HOLDS_A_GUARD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl OnlyGuard {
    #[track_caller]
    fn take() -> Self {
        #[cfg(debug_assertions)]
        assert!(
            !HOLDS_A_GUARD.replace(true) || std::thread::panicking(),
            "this thread holds the guard of another lock or channel: copy out, and let go of it first"
        );
        Self
    }
}

impl Drop for OnlyGuard {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        HOLDS_A_GUARD.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_out_leaves_no_guard_behind() {
        let (sender, mut receiver) = watch::channel(vec![1]);
        let held = Mutex::new(0);
        *lock(&held) += current(&receiver).len();
        assert_eq!(send_new(&sender, vec![1]), None);
        assert_eq!(send_new(&sender, vec![1, 2]), Some(vec![1]));
        assert!(receiver.has_changed().unwrap());
        *lock(&held) += newest(&mut receiver).len();
        assert!(!receiver.has_changed().unwrap());
        assert_eq!(*lock(&held), 3);
    }

    #[test]
    #[should_panic = "holds the guard of another lock or channel"]
    fn a_second_lock_is_found() {
        let (one, other) = (Mutex::new(1), RwLock::new(2));
        let _sum = *lock(&one) + *read(&other);
    }

    #[test]
    #[should_panic = "holds the guard of another lock or channel"]
    fn a_send_under_a_guard_of_the_same_channel_is_found() {
        let (sender, receiver) = watch::channel(1);
        peek(&receiver, |held| send(&sender, held + 1));
    }

    #[test]
    #[should_panic = "holds the guard of another lock or channel"]
    fn a_send_under_a_lock_is_found() {
        let (sender, lock_) = (watch::channel(1).0, Mutex::new(2));
        let guard = lock(&lock_);
        send(&sender, *guard);
    }
}
