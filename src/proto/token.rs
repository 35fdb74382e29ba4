//! Tokens: who set a key, unique over all attempts of all processes.

use std::{fmt, time::Duration};

use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng},
};

/// The random value that proves whose key it is: 20 bytes, as 40 hex digits on the wire (the size that the
/// Redis documentation of distributed locks suggests, readable in `redis-cli`).
///
/// It is the right to release the lock, so `Debug` shows its first eight digits only.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Token {
    digits: [u8; Self::LEN],
}

impl Token {
    const LEN: usize = 40;

    /// Stands where no token was drawn yet.
    pub const NONE: Self = Self { digits: [b'0'; Self::LEN] };

    /// The 40 hex digits, as they stand in the keys.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.digits).unwrap_or_default()
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.digits
    }

    fn from_random(random: [u8; Self::LEN / 2]) -> Self {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut digits = [0; Self::LEN];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(random) {
            pair[0] = HEX[usize::from(byte >> 4)];
            pair[1] = HEX[usize::from(byte & 15)];
        }
        Self { digits }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}…)", self.as_str().get(..8).unwrap_or_default())
    }
}

/// Draws tokens, and the random delays too, from one ChaCha20 stream.
pub struct TokenSource {
    rng: ChaCha20Rng,
}

impl TokenSource {
    pub fn new(seed: [u8; 32]) -> Self {
        Self { rng: ChaCha20Rng::from_seed(seed) }
    }

    pub fn token(&mut self) -> Token {
        let mut random = [0; Token::LEN / 2];
        self.rng.fill_bytes(&mut random);
        Token::from_random(random)
    }

    /// A delay drawn evenly from `min..=max`.
    pub fn delay(&mut self, min: Duration, max: Duration) -> Duration {
        let span = u64::try_from(max.saturating_sub(min).as_nanos()).unwrap_or(u64::MAX);
        // The high half of a 128-bit product is even enough for a delay, and needs no loop.
        let drawn = (u128::from(self.rng.next_u64()) * (u128::from(span) + 1)) >> 64;
        min + Duration::from_nanos(u64::try_from(drawn).unwrap_or(span))
    }
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSource")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_forty_hex_digits_and_debug_hides_most() {
        let token = TokenSource::new([7; 32]).token();
        assert_eq!(token.as_str().len(), 40);
        assert!(token.as_str().bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')));
        assert_eq!(format!("{token:?}"), format!("Token({}…)", &token.as_str()[..8]));
    }

    #[test]
    fn tokens_differ_within_a_source_and_between_seeds() {
        let mut source = TokenSource::new([7; 32]);
        let drawn: std::collections::HashSet<_> =
            (0..1000).map(|_| source.token().to_string()).collect();
        assert_eq!(drawn.len(), 1000);
        assert!(!drawn.contains(TokenSource::new([8; 32]).token().as_str()));
    }

    #[test]
    fn delays_reach_both_bounds_and_no_further() {
        let mut source = TokenSource::new([1; 32]);
        let (min, max) = (Duration::from_nanos(5), Duration::from_nanos(8));
        let drawn: std::collections::BTreeSet<_> =
            (0..1000).map(|_| source.delay(min, max).as_nanos()).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [5, 6, 7, 8]);
        assert_eq!(source.delay(max, max), max);
    }
}
