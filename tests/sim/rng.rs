//! One stream of numbers that decides everything in a schedule: SplitMix64 (Steele, Lea and Flood, 2014).

#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Evenly from `0..n`; 0 for an empty range.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Evenly from `min..=max`.
    pub fn between(&mut self, min: u64, max: u64) -> u64 {
        min + self.below(max.saturating_sub(min) + 1)
    }

    pub fn permille(&mut self, chance: u32) -> bool {
        self.below(1000) < u64::from(chance)
    }

    pub fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Around `mean`, and now and then much more or next to nothing.
    pub fn about(&mut self, mean: u64) -> u64 {
        match self.below(16) {
            0 => self.below(mean / 8 + 1),
            1 => self.between(mean, mean * 4),
            _ => self.between(mean / 2, mean * 3 / 2),
        }
    }

    pub fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes());
        }
        bytes
    }
}
