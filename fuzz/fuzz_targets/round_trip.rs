//! See `checks::round_trip`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::round_trip::check(data));
