// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The exchange of Receives for Receives of another size, with a model of the Receive Queue.

use std::collections::VecDeque;

use super::mutation::Random;
use crate::xdr::resize::{
    Resize,
    ResizeResult, //
};

/// A connection, in which a buffer is represented by its size.
struct Queue {
    resize: Resize,
    most: u32,
    posted: VecDeque<u32>,
    free: Vec<u32>,
    in_process: Vec<u32>,
    /// The size that the peer may send, as announced to it or as it has requested.
    peer: u32,
    /// An announcement that a thread is about to post.
    telling: Option<u32>,
}

impl Queue {
    const TARGET: usize = 8;

    fn new(size: u32) -> Self {
        let mut queue = Queue {
            resize: Resize::new(size),
            most: size,
            posted: VecDeque::new(),
            free: vec![size; Self::TARGET],
            in_process: Vec::new(),
            peer: size,
            telling: None,
        };
        queue.post();
        queue
    }

    fn post(&mut self) {
        while self.posted.len() < Self::TARGET {
            let size = self.free.pop().unwrap_or(self.resize.size());
            self.posted.push_back(size);
        }
    }

    /// The peer sends a message of full size.
    fn land(&mut self) {
        let buffer = self.posted.pop_front().expect("a Receive");
        assert!(buffer >= self.peer, "{buffer} octets for {}", self.peer);
        self.resize.note_completed(buffer as usize, 1);
        self.in_process.push(buffer);
        self.post();
        let outdated = |size: &&u32| **size != self.resize.size();
        let outdated = self.posted.iter().filter(outdated).count();
        assert_eq!(self.resize.outdated() as usize, outdated);
    }

    fn release(&mut self) {
        if let Some(buffer) = self.in_process.pop() {
            if self.resize.keeps(buffer as usize) {
                self.free.push(buffer);
            }
        }
    }

    fn exchange(&mut self) {
        if let Some(size) = self.resize.wants(self.most) {
            self.free = vec![size; Self::TARGET];
            self.resize.begin(size, self.posted.len() as u32);
        }
    }

    /// Decides on an announcement. Its post may be later than that of an answer.
    fn decide(&mut self) {
        if let Some(size) = self.resize.take_due() {
            assert!(size > self.peer && self.telling.is_none());
            self.telling = Some(size);
        }
    }

    /// Posts an announcement, or fails to.
    fn tell(&mut self, sent: bool) {
        self.decide();
        if let Some(size) = self.telling.take() {
            self.resize.end_announcement(sent);
            if sent {
                self.peer = size;
            }
        }
    }

    fn ask(&mut self, octets: u32) -> ResizeResult {
        let answer = self.resize.request(octets);
        if answer == ResizeResult::Granted {
            self.peer = octets;
        }
        answer
    }
}

#[test]
fn a_larger_size_is_announced_when_no_small_receive_is_left() {
    let mut queue = Queue::new(4096);
    queue.most = 16384;
    queue.exchange();
    for _ in 0..Queue::TARGET {
        queue.tell(true);
        assert_eq!(queue.peer, 4096);
        queue.land();
    }
    queue.tell(true);
    assert_eq!((queue.peer, queue.resize.announced()), (16384, 16384));
    assert_eq!(queue.resize.wants(16384), None);
}

#[test]
fn one_thread_at_a_time_allocates() {
    let mut resize = Resize::new(4096);
    assert_eq!(resize.claim(16384), Some(16384));
    // Another thread must neither allocate as well, nor have the size given up if it has no memory.
    assert_eq!(resize.claim(16384), None);
    assert_eq!(resize.wants(16384), None);
    resize.release();
    assert_eq!(resize.wants(16384), Some(16384));
    assert_eq!(resize.claim(16384), Some(16384));
    resize.release();
    resize.give_up(16384);
    assert_eq!(resize.claim(16384), None);
    assert_eq!(resize.claim(8192), Some(8192));
}

#[test]
fn a_smaller_size_is_for_the_peer_to_ask_for() {
    let mut queue = Queue::new(16384);
    assert_eq!(queue.resize.wants(4096), None);
    assert_eq!(queue.ask(4095), ResizeResult::Rejected);
    assert_eq!(queue.ask(4096), ResizeResult::Granted);
    assert_eq!(queue.resize.wants(16384), Some(4096));
    queue.exchange();
    // One exchange at a time.
    assert_eq!(queue.ask(16384), ResizeResult::Rejected);
    assert_eq!(queue.resize.wants(16384), None);
    (0..Queue::TARGET).for_each(|_| queue.land());
    assert_eq!(queue.resize.wants(16384), Some(16384));
    // More than the administrator permits.
    assert_eq!(queue.resize.wants(8192), Some(8192));
}

#[test]
fn an_unwanted_size_is_not_announced() {
    let mut queue = Queue::new(4096);
    queue.most = 16384;
    queue.exchange();
    assert_eq!(queue.ask(4096), ResizeResult::Granted);
    (0..Queue::TARGET).for_each(|_| queue.land());
    queue.tell(true);
    assert_eq!(queue.peer, 4096);
    queue.exchange();
    (0..Queue::TARGET).for_each(|_| queue.land());
    assert!(queue.posted.iter().all(|size| *size == 4096));
}

/// Returns a queue whose Receives have become larger, which is about to be announced.
fn larger() -> Queue {
    let mut queue = Queue::new(4096);
    queue.most = 16384;
    queue.exchange();
    (0..Queue::TARGET).for_each(|_| queue.land());
    queue.decide();
    assert_eq!(queue.telling, Some(16384));
    queue
}

#[test]
fn a_request_that_crosses_an_announcement_is_rejected() {
    for octets in [4096, 8192, 16384, 65536] {
        let mut queue = larger();
        // The answer may be posted before the announcement or after it.
        assert_eq!(queue.ask(octets), ResizeResult::Rejected);
        assert_eq!(queue.resize.wants(16384), None);
        queue.tell(true);
        (0..2 * Queue::TARGET).for_each(|_| queue.land());
        // A request after the announcement is granted as usual.
        assert_eq!(queue.ask(4096), ResizeResult::Granted);
    }
}

#[test]
fn an_announcement_that_was_not_sent_is_due_again() {
    let mut queue = larger();
    assert_eq!(queue.resize.take_due(), None);
    queue.tell(false);
    assert_eq!((queue.peer, queue.resize.announced()), (4096, 4096));
    queue.tell(true);
    assert_eq!((queue.peer, queue.resize.announced()), (16384, 16384));
}

#[test]
fn without_memory_nothing_changes_until_another_size_is_wanted() {
    let mut resize = Resize::new(4096);
    resize.give_up(16384);
    assert_eq!(resize.wants(16384), None);
    assert_eq!(resize.wants(8192), Some(8192));
}

#[test]
fn no_message_is_longer_than_the_receive_that_it_lands_in() {
    let mut random = Random(521);
    let sizes = [1024, 4096, 5000, 8192, 16384, 65536];
    let (mut announced, mut done) = (0, 0);
    for _ in 0..200 {
        let mut queue = Queue::new(4096);
        for _ in 0..500 {
            let size = sizes[random.below(sizes.len())];
            match random.below(20) {
                0 => queue.most = size,
                1 => done += u32::from(queue.ask(size) == ResizeResult::Granted),
                2..=4 => queue.exchange(),
                5 => queue.decide(),
                6..=7 => {
                    let before = queue.peer;
                    queue.tell(random.below(4) != 0);
                    announced += u32::from(queue.peer != before);
                }
                8..=12 => queue.release(),
                _ => queue.land(),
            }
        }
    }
    println!("{announced} sizes announced, {done} requests granted");
    assert!(announced > 500 && done > 500);
}

#[test]
fn requests_are_rejected_while_the_grant_of_another_is_being_sent() {
    let mut resize = Resize::new(16384);
    assert_eq!(resize.request(8192), ResizeResult::Granted);
    resize.hold();
    // Another thread may answer this one first. The peer would then take the size for 8192.
    assert_eq!(resize.request(4096), ResizeResult::Rejected);
    assert_eq!(resize.announced(), 8192);
    resize.end_hold();
    assert_eq!(resize.request(4096), ResizeResult::Granted);
    assert_eq!(resize.announced(), 4096);
}

#[test]
fn requests_are_rejected_until_all_messages_with_a_size_are_posted() {
    let mut resize = Resize::new(16384);
    assert_eq!(resize.request(8192), ResizeResult::Granted);
    resize.hold();
    // The properties, which another thread sends.
    resize.hold();
    resize.end_hold();
    assert_eq!(resize.request(4096), ResizeResult::Rejected);
    assert_eq!(resize.take_due(), None);
    resize.end_hold();
    assert_eq!(resize.request(4096), ResizeResult::Granted);
}

#[test]
fn nothing_is_announced_while_a_grant_is_being_sent() {
    let mut resize = Resize::new(16384);
    assert_eq!(resize.request(8192), ResizeResult::Granted);
    resize.hold();
    assert_eq!(resize.request(16384), ResizeResult::Rejected);
    assert_eq!(resize.take_due(), None);
    resize.end_hold();
    assert_eq!(resize.take_due(), Some(16384));
}
