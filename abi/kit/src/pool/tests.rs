//! Pools on their own, with threads that search, and threads that add and remove objects.

use super::*;

static STRINGS: Pool<String> = Pool::new(4);

#[test]
fn only_live_objects_are_found() {
    let a = STRINGS.put("a".to_owned()).unwrap().as_ptr().cast_const();
    let b = STRINGS.put("b".to_owned()).unwrap().as_ptr().cast_const();
    // SAFETY: nothing is freed while the references live.
    unsafe {
        assert_eq!(STRINGS.get(a).unwrap(), "a");
        assert_eq!(STRINGS.live(|s| s == "b"), vec![b]);
        assert_eq!(
            STRINGS
                .find_map(|s| (s == "b").then(|| s.clone()))
                .as_deref(),
            Some("b")
        );
        assert_eq!(STRINGS.find_map(|s| (s == "c").then_some(())), None);
        assert_eq!(STRINGS.take(a).as_deref(), Some("a"));
        assert!(STRINGS.get(a).is_none() && STRINGS.take(a).is_none());
        for wild in [
            0usize,
            1,
            64,
            a as usize + 8,
            usize::MAX,
            &raw const STRINGS as usize,
        ] {
            assert!(STRINGS.get(wild as *const String).is_none(), "{wild:#x}");
            assert!(STRINGS.take(wild as *const String).is_none(), "{wild:#x}");
        }
        assert_eq!(STRINGS.get(b).unwrap(), "b");
    }
}

/// An object that a search passes to its closure stays alive until the closure returns, even if its slot would become a
/// spare one.
#[test]
fn a_search_keeps_the_object_it_inspects_alive() {
    static WORDS: Pool<String> = Pool::new(4);
    let word = WORDS.put("word".to_owned()).unwrap().as_ptr() as usize;
    freed_after_the_search(&WORDS, word, |address| {
        // SAFETY: no reference is in use, except by the search.
        drop(unsafe { WORDS.take(address) });
    });
    let word = WORDS.put("word".to_owned()).unwrap().as_ptr() as usize;
    freed_after_the_search(&WORDS, word, |address| {
        let spares = Spares::new(|| &WORDS);
        // SAFETY: as above.
        drop(unsafe { WORDS.take_sparing(Some(&spares), address) });
    });
}

fn freed_after_the_search(
    words: &'static Pool<String>,
    word: usize,
    free: impl Fn(*const String) + Sync,
) {
    let (taken, free) = (&AtomicU32::new(0), &free);
    std::thread::scope(|scope| {
        let found = words.find_map(|s| {
            scope.spawn(move || {
                free(word as *const String);
                taken.store(1, Ordering::Release);
            });
            // Gives a faulty pool time to free the object. A correct one passes, however long this takes.
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert_eq!(taken.load(Ordering::Acquire), 0);
            assert!(words.contains(word as *const String), "the object is live");
            Some(s.clone())
        });
        assert_eq!(found.as_deref(), Some("word"));
    });
    assert_eq!(taken.load(Ordering::Acquire), 1);
    assert!(!words.contains(word as *const String));
}

/// Threads add and remove objects without a lock while another one searches. A search that saw a destroyed object would
/// find other words, or a sanitizer would report it.
#[test]
fn searches_see_valid_objects_while_others_are_added_and_removed() {
    static WORDS: Pool<String> = Pool::new(64);
    const ROUNDS: usize = if cfg!(miri) { 30 } else { 3000 };
    let searching = &AtomicU32::new(1);
    std::thread::scope(|scope| {
        for name in ["one", "two", "three"] {
            scope.spawn(move || {
                let spares = Spares::new(|| &WORDS);
                for round in 0..ROUNDS {
                    let vacant = WORDS.vacant(Some(&spares)).unwrap();
                    let address = vacant.address().as_ptr();
                    let word = format!("{name} {round}");
                    vacant.fill(word.clone());
                    // SAFETY: only this thread takes it, and no reference is in use, except by searches.
                    let mine = unsafe { WORDS.take_sparing(Some(&spares), address) };
                    assert_eq!(mine, Some(word));
                    // SAFETY: as above.
                    assert_eq!(unsafe { WORDS.take_sparing(Some(&spares), address) }, None);
                }
                searching.fetch_add(1, Ordering::Release);
            });
        }
        while searching.load(Ordering::Acquire) < 4 {
            WORDS.find_map(|word| {
                let (name, round) = word.split_once(' ').unwrap();
                assert!(["one", "two", "three"].contains(&name), "{word}");
                assert!(round.parse::<usize>().unwrap() < ROUNDS);
                None::<()>
            });
        }
    });
    assert!(WORDS.live(|_| true).is_empty());
}

#[test]
fn a_full_pool_refuses_objects_until_one_is_removed() {
    static NUMBERS: Pool<u64> = Pool::new(2);
    let first = NUMBERS.put(1).unwrap().as_ptr().cast_const();
    assert!(NUMBERS.put(2).is_some());
    assert!(NUMBERS.put(3).is_none());
    // SAFETY: no reference is in use.
    assert_eq!(unsafe { NUMBERS.take(first) }, Some(1));
    assert!(NUMBERS.put(4).is_some());
}

/// Spare slots are not lost: their thread reuses them, and after it has exited, other threads do.
#[test]
fn spare_slots_are_reused_and_returned() {
    const MANY: u32 = 3 * SPARES as u32;
    static WORDS: Pool<String> = Pool::new(MANY);
    fn words() -> &'static Pool<String> {
        &WORDS
    }
    let put = |spares: Option<&Spares<String>>| {
        let vacant = WORDS.vacant(spares)?;
        let address = vacant.address();
        vacant.fill(format!("{address:p}"));
        Some(address)
    };
    let end = |spares: Option<&Spares<String>>, address: NonNull<String>| {
        // SAFETY: no reference is in use, and one thread has the pool.
        unsafe { WORDS.end(spares, address.as_ptr()) }
    };
    let spares = Some(&Spares::new(words));
    for turn in 0..3 {
        let all: Vec<_> = std::iter::from_fn(|| put(spares)).collect();
        // The slots that this thread has kept since the last round are also available.
        assert_eq!(all.len(), MANY as usize, "{turn}");
        for address in all {
            // SAFETY: it is live, and no other thread destroys it meanwhile.
            let word = unsafe { WORDS.get(address.as_ptr()) }.unwrap();
            assert_eq!(*word, format!("{address:p}"));
            assert!(end(spares, address));
            assert!(!end(spares, address) && !WORDS.contains(address.as_ptr()));
        }
    }
    let mine = Spares::new(words);
    for address in [(); SPARES].map(|()| put(spares).unwrap()) {
        assert!(end(Some(&mine), address));
    }
    let rest = std::iter::from_fn(|| put(spares)).count();
    assert_eq!(rest, MANY as usize - SPARES);
    drop(mine);
    let mut unused: Vec<_> = std::iter::from_fn(|| WORDS.vacant(None)).collect();
    assert_eq!(unused.len(), SPARES);
    assert!(!WORDS.contains(unused[0].address().as_ptr()));
    unused.truncate(5);
    assert_eq!(std::iter::from_fn(|| put(None)).count(), SPARES - 5);
}

#[test]
fn a_pool_grows_beyond_its_first_allocation() {
    static BLOCKS: Pool<[u64; 16]> = Pool::new(10_000);
    let all: Vec<_> = (0..10_000)
        .map(|n| BLOCKS.put([n; 16]).unwrap().as_ptr())
        .collect();
    for (n, block) in all.iter().enumerate() {
        // SAFETY: nothing is freed.
        let found = unsafe { BLOCKS.get(block.cast_const()) }.unwrap();
        assert_eq!(found[7], n as u64);
    }
    assert!(BLOCKS.put([0; 16]).is_none());
}
