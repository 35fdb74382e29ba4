//! See `checks::decode`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::decode::check(data));
