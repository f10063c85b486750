#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate::fuzz::completion_stream(bytes));
