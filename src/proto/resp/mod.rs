//! RESP, the wire format of Redis and Valkey: commands out, replies in, versions 2 and 3.

pub mod decode;
pub mod encode;
