//! The Lua scripts and their digests.

use super::sha1;

/// A script that the servers cache, and run by its digest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Script {
    Extend,
    Release,
}

impl Script {
    pub const ALL: [Self; 2] = [Self::Extend, Self::Release];

    pub fn source(self) -> &'static str {
        mutant!(ExtendCreates => if self == Self::Extend { return super::mutant::EXTEND_OR_CREATE });
        mutant!(ReleaseAnything => if self == Self::Release { return super::mutant::RELEASE_ANYTHING });
        self.text()
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Extend => include_str!("../../lua/extend.lua"),
            Self::Release => include_str!("../../lua/release.lua"),
        }
    }

    /// The SHA-1 of the source, as 40 hex digits: the name a server caches it by.
    pub fn digest(self) -> &'static [u8; 40] {
        // Statics, so that the compiler computes them once and for all.
        static EXTEND: [u8; 40] = sha1::hex_digest(Script::Extend.text().as_bytes());
        static RELEASE: [u8; 40] = sha1::hex_digest(Script::Release.text().as_bytes());
        match self {
            Self::Extend => &EXTEND,
            Self::Release => &RELEASE,
        }
    }
}
