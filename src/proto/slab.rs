//! Slots with identities that are never mistaken for one another.
//!
//! A freed slot is used again, with the buffers its value had grown, but under a new generation: an
//! identity that is kept too long (by a reply that comes late, say) finds nothing.

use std::marker::PhantomData;

/// Names one use of a slot.
pub struct Id<T> {
    index: u32,
    generation: u32,
    kind: PhantomData<fn() -> T>,
}

pub struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

struct Slot<T> {
    generation: u32,
    used: bool,
    value: T,
}

impl<T: Default> Slab<T> {
    pub fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// A slot, with whatever its last user left in it.
    pub fn claim(&mut self) -> (Id<T>, &mut T) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, used: false, value: T::default() });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 locks at a time")
        });
        let slot = &mut self.slots[index_of(index)];
        slot.used = true;
        (Id { index, generation: slot.generation, kind: PhantomData }, &mut slot.value)
    }

    pub fn free(&mut self, id: Id<T>) {
        if self.get(id).is_some() {
            let slot = &mut self.slots[index_of(id.index)];
            slot.generation = slot.generation.wrapping_add(1);
            slot.used = false;
            self.free.push(id.index);
        }
    }

    pub fn get(&self, id: Id<T>) -> Option<&T> {
        let slot = self.slots.get(index_of(id.index))?;
        (slot.used && slot.generation == id.generation).then_some(&slot.value)
    }

    pub fn get_mut(&mut self, id: Id<T>) -> Option<&mut T> {
        let slot = self.slots.get_mut(index_of(id.index))?;
        (slot.used && slot.generation == id.generation).then_some(&mut slot.value)
    }

    /// Who uses the slot now.
    pub fn id_at(&self, index: u32) -> Option<Id<T>> {
        let slot = self.slots.get(index_of(index)).filter(|slot| slot.used)?;
        Some(Id { index, generation: slot.generation, kind: PhantomData })
    }

    /// The identities in use.
    pub fn ids(&self) -> impl Iterator<Item = Id<T>> {
        (0..).zip(&self.slots).filter(|(_, slot)| slot.used).map(|(index, slot)| Id {
            index,
            generation: slot.generation,
            kind: PhantomData,
        })
    }

    /// The values in use.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter(|slot| slot.used).map(|slot| &slot.value)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter(|slot| slot.used).map(|slot| &mut slot.value)
    }
}

fn index_of(index: u32) -> usize {
    usize::try_from(index).unwrap_or(usize::MAX)
}

impl<T> Id<T> {
    /// Where the slot stands: unique among the values now in the slab.
    pub fn slot(self) -> u32 {
        self.index
    }
}

// Derives would ask the same of `T`.
impl<T> Clone for Id<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Id<T> {}

impl<T> Eq for Id<T> {}

impl<T> PartialEq for Id<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.index, self.generation) == (other.index, other.generation)
    }
}

impl<T> std::fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

impl<T> std::fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slab of {}", self.slots.len() - self.free.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_dies_with_its_use_of_the_slot() {
        let mut slab: Slab<Vec<u8>> = Slab::new();
        let (first, value) = slab.claim();
        value.extend(b"buffer");
        slab.free(first);
        assert_eq!(slab.get(first), None);
        let (second, value) = slab.claim();
        assert_eq!(value, b"buffer", "the slot keeps its buffer");
        assert_eq!(second.slot(), first.slot());
        assert_ne!(second, first);
        slab.free(first);
        assert!(slab.get(second).is_some(), "freeing twice frees nobody else");
        assert_eq!(slab.iter().count(), 1);
    }
}
