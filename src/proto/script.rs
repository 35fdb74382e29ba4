//! The Lua scripts and their digests.

use super::sha1;

/// A script that the servers cache, and run by its digest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Script {
    AcquireFenced,
    Confirm,
    Extend,
    Release,
    Repair,
}

impl Script {
    pub const ALL: [Self; 5] =
        [Self::AcquireFenced, Self::Confirm, Self::Extend, Self::Release, Self::Repair];

    pub fn source(self) -> &'static str {
        mutant!(CounterStartsOver => if self == Self::AcquireFenced {
            return super::mutant::ACQUIRE_UNSEEDED;
        });
        mutant!(ExtendCreates => if self == Self::Extend { return super::mutant::EXTEND_OR_CREATE });
        mutant!(ReleaseAnything => if self == Self::Release { return super::mutant::RELEASE_ANYTHING });
        self.text()
    }

    const fn text(self) -> &'static str {
        match self {
            Self::AcquireFenced => include_str!("../../lua/acquire_fenced.lua"),
            Self::Confirm => include_str!("../../lua/confirm.lua"),
            Self::Extend => include_str!("../../lua/extend.lua"),
            Self::Release => include_str!("../../lua/release.lua"),
            Self::Repair => include_str!("../../lua/repair.lua"),
        }
    }

    /// The SHA-1 of the source, as 40 hex digits: the name a server caches it by.
    pub fn digest(self) -> &'static [u8; 40] {
        // Statics, so that the compiler computes them once and for all.
        static ACQUIRE_FENCED: [u8; 40] = sha1::hex_digest(Script::AcquireFenced.text().as_bytes());
        static CONFIRM: [u8; 40] = sha1::hex_digest(Script::Confirm.text().as_bytes());
        static EXTEND: [u8; 40] = sha1::hex_digest(Script::Extend.text().as_bytes());
        static RELEASE: [u8; 40] = sha1::hex_digest(Script::Release.text().as_bytes());
        static REPAIR: [u8; 40] = sha1::hex_digest(Script::Repair.text().as_bytes());
        match self {
            Self::AcquireFenced => &ACQUIRE_FENCED,
            Self::Confirm => &CONFIRM,
            Self::Extend => &EXTEND,
            Self::Release => &RELEASE,
            Self::Repair => &REPAIR,
        }
    }
}
