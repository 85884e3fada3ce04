//! Random numbers that a seed repeats on every machine: SplitMix64.

/// A die; its seed says what it will show.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// Less than so many.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.roll(high - low + 1)
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.roll(100) < chance
    }

    pub(crate) fn of<'a>(&mut self, faces: &[&'a str]) -> &'a str {
        faces[self.roll(faces.len() as u64) as usize]
    }
}

/// A number that the environment may name.
pub(crate) fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}
