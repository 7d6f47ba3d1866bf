use super::*;

const LEN: u64 = 4096;

#[test]
fn nothing_is_accessed_beyond_the_end() {
    let map = Mapping::anonymous(LEN).unwrap();
    for len in [1, 8, 200, SHORT, SHORT + 1, LEN] {
        let bytes = vec![7; len as usize];
        assert!(map.write(LEN - len, &bytes).is_ok() && map.equals(LEN - len, &bytes).unwrap());
        assert!(map.write(LEN - len + 1, &bytes).is_err() && map.equals(LEN - len + 1, &bytes).is_err());
        assert!(map.write(u64::MAX - len + 1, &bytes).is_err());
    }
    assert!(map.read::<u64>(LEN - 8).is_ok() && map.read::<u64>(LEN).is_err());
    assert!(map.words(LEN - 16, 2).is_ok() && map.words(LEN - 8, 2).is_err() && map.words(4, 1).is_err());
    assert!(map.upper_halves(LEN - 64, 7).is_ok() && map.upper_halves(LEN - 60, 7).is_err());
}

#[test]
fn a_difference_is_seen_wherever_it_is() {
    let map = Mapping::anonymous(LEN).unwrap();
    for len in 0..40 {
        let bytes: Vec<u8> = (1..=len).collect();
        map.write(3, &bytes).unwrap();
        assert!(map.equals(3, &bytes).unwrap());
        for i in 0..bytes.len() {
            let mut other = bytes.clone();
            other[i] ^= 0x80;
            assert!(!map.equals(3, &other).unwrap(), "{len} {i}");
        }
    }
}

#[test]
fn upper_halves_are_found_whatever_the_lower_ones_are() {
    let map = Mapping::anonymous(LEN).unwrap();
    for wanted in [0u16, 1, 0x7fff, 0x8000, 0xffff] {
        for at in 0..16u64 {
            let halves: [u16; 32] = std::array::from_fn(|i| match i as u64 == 2 * at + 1 {
                true => wanted,
                false if i % 2 == 0 => wanted,
                false => wanted ^ 1 << (i % 16),
            });
            map.write(12, halves.as_bytes()).unwrap();
            assert_eq!(map.upper_halves(12, wanted).unwrap(), 1 << at, "{wanted:#x} {at}");
        }
    }
}
