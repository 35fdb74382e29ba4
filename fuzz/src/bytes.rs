//! Choices drawn from an input's bytes, from the front; an input that is used up draws zeros.

/// What is left of an input.
#[derive(Clone, Copy)]
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    pub fn chance(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// A number less than `end`.
    pub fn below(&mut self, end: u8) -> u8 {
        self.byte() % end
    }

    pub fn index(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// As many bytes as there are, if not so many.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Eight bytes, of which those that there are not are zero.
    pub fn word(&mut self) -> [u8; 8] {
        let mut word = [0; 8];
        let taken = self.take(8);
        word[..taken.len()].copy_from_slice(taken);
        word
    }

    /// The bytes up to the separator, which is taken too.
    pub fn field(&mut self, separator: u8) -> &'a [u8] {
        let len = self.0.iter().position(|byte| *byte == separator).unwrap_or(self.0.len());
        let field = self.take(len);
        self.byte();
        field
    }
}

/// The bytes in pieces of 1 to `longest`, whose lengths follow from the seed alone.
pub fn pieces(bytes: &[u8], longest: usize, seed: u64) -> impl Iterator<Item = &[u8]> {
    let mut state = seed | 1;
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        // Xorshift (Marsaglia, 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let len = 1 + usize::from(state.to_le_bytes()[2]) % longest;
        let piece;
        (piece, rest) = rest.split_at(len.min(rest.len()));
        Some(piece)
    })
}
