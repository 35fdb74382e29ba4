//! Deadlines by slot, the earliest first. A binary heap that knows where each slot stands in it, so that a
//! deadline that is met is taken out and wakes nobody.

use super::time::Time;

#[derive(Debug, Default)]
pub struct Timers {
    heap: Vec<(Time, u32)>,
    /// Where each slot's deadline stands in `heap`.
    places: Vec<Option<usize>>,
}

impl Timers {
    /// Sets the slot's one deadline, in place of the one it had.
    pub fn set(&mut self, slot: u32, at: Time) {
        if self.place_mut(slot).is_some_and(|place| self.heap[place].0 == at) {
            return;
        }
        self.clear(slot);
        let place = self.heap.len();
        self.heap.push((at, slot));
        *self.place_mut(slot) = Some(place);
        self.sift_up(place);
    }

    pub fn clear(&mut self, slot: u32) {
        let Some(place) = self.place_mut(slot).take() else {
            return;
        };
        self.heap.swap_remove(place);
        if let Some(&(_, moved)) = self.heap.get(place) {
            *self.place_mut(moved) = Some(place);
            let place = self.sift_up(place);
            self.sift_down(place);
        }
    }

    pub fn next(&self) -> Option<Time> {
        self.heap.first().map(|&(at, _)| at)
    }

    /// Takes out one slot whose deadline has come.
    pub fn pop_due(&mut self, now: Time) -> Option<u32> {
        let &(at, slot) = self.heap.first()?;
        (at <= now).then(|| self.clear(slot))?;
        Some(slot)
    }

    fn sift_up(&mut self, mut place: usize) -> usize {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.heap[parent].0 <= self.heap[place].0 {
                break;
            }
            self.swap(parent, place);
            place = parent;
        }
        place
    }

    fn sift_down(&mut self, mut place: usize) {
        loop {
            let children = (2 * place + 1..=2 * place + 2).filter(|&child| child < self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child].0) else {
                return;
            };
            if self.heap[place].0 <= self.heap[least].0 {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        let (in_a, in_b) = (self.heap[a].1, self.heap[b].1);
        *self.place_mut(in_a) = Some(a);
        *self.place_mut(in_b) = Some(b);
    }

    fn place_mut(&mut self, slot: u32) -> &mut Option<usize> {
        let slot = usize::try_from(slot).unwrap_or(usize::MAX);
        if slot >= self.places.len() {
            self.places.resize(slot + 1, None);
        }
        &mut self.places[slot]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against the obvious model: a map from slot to deadline.
        #[test]
        fn agrees_with_a_map(steps in prop::collection::vec((0u32..12, 0u64..50, 0u8..4), 0..200)) {
            let mut timers = Timers::default();
            let mut model: BTreeMap<u32, Time> = BTreeMap::new();
            for (slot, nanos, step) in steps {
                let time = Time::from_nanos(nanos);
                match step {
                    0 | 1 => {
                        timers.set(slot, time);
                        model.insert(slot, time);
                    }
                    2 => {
                        timers.clear(slot);
                        model.remove(&slot);
                    }
                    _ => {
                        let earliest = model.values().min().copied();
                        match timers.pop_due(time) {
                            Some(popped) => {
                                let at = model.remove(&popped).unwrap();
                                prop_assert!(at <= time);
                                prop_assert_eq!(Some(at), earliest);
                            }
                            None => prop_assert!(earliest.is_none_or(|at| at > time)),
                        }
                    }
                }
                prop_assert_eq!(timers.next(), model.values().min().copied());
            }
        }
    }
}
