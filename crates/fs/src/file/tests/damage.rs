//! Damaged content: reported, never followed astray, and saved as far as it is whole.

use pram::Off;

use super::*;

/// Every call on damaged content returns, and the check tells.
fn use_damaged(s: &Session, c: &Content, what: &str) {
    let r = s.memory();
    let mut problems = 0;
    check(r, c, &mut |_| problems += 1);
    assert!((1..40).contains(&problems), "{what}: {problems} problems");
    let mut buf = vec![0; 100_000];
    let _ = read(r, c, 0, &mut buf);
    let _ = (seek_data(r, c, 0), seek_hole(r, c, 0));
    let _ = visit(r, c, &mut |_, _| {});
    type Call = fn(&mut Edit, &mut Content) -> Result<()>;
    let calls: [Call; 7] = [
        |tx, c| write(tx, c, 5000, &[1; 9000]),
        |tx, c| truncate(tx, c, 6000),
        |tx, c| punch(tx, c, 4096, 100_000).map(|_| ()),
        |tx, c| collapse(tx, c, 4096, 4096),
        |tx, c| trim(tx, c).map(|_| ()),
        |tx, c| allocate(tx, c, 0, 300_000, false).map(|_| ()),
        free,
    ];
    for call in calls {
        let mut op = s.begin().unwrap();
        let mut tx = op.tx().unwrap();
        let _ = call(&mut Edit::in_memory(&mut tx), &mut c.clone());
    }
    // The readable part is saved.
    let mut op = s.begin().unwrap();
    let mut tx = op.tx().unwrap();
    let mut saved = *c;
    salvage(&mut Edit::in_memory(&mut tx), &mut saved).unwrap();
    assert_eq!(saved.size, c.size.min(MAX_SIZE));
    check(r, &saved, &mut |p| panic!("{what}, salvaged: {p}"));
}

#[test]
fn damaged_content_is_reported_and_never_followed_astray() {
    let s = pram::Session::in_memory(8 << 20).unwrap();
    let (mut small, mut large) = (Content::default(), Content::default());
    put(&s, &mut small, 0, &[1; 1000]).unwrap();
    put(&s, &mut large, 0, &[1; 500_000]).unwrap();
    put(&s, &mut large, 5 << 20, &[1; 5000]).unwrap();
    let root = Root::unpack(large.root);
    assert_eq!((root.form, root.depth), (TREE, 2));
    let Ok(Form::Tree(top)) = form(s.memory(), &large) else { panic!("a tree") };
    let node = top.child(s.memory(), 0).unwrap().unwrap();
    let leaf = node.off;
    // Root words.
    for depth in [0, 1, 3, 6, 7, 255] {
        let c = Content { root: Root { depth, ..root }.pack(), ..large };
        use_damaged(&s, &c, &format!("depth {depth}"));
    }
    for (off, form) in [(root.off, 0), (root.off, 1), (root.off, 9), (root.off + 8, 2), (1 << 47, 2), (5, 1)] {
        let c = Content { root: Root { off, form, depth: 2 }.pack(), ..large };
        use_damaged(&s, &c, &format!("root {off:#x} of form {form}"));
    }
    use_damaged(&s, &Content { pages: 3, ..large }, "pages");
    use_damaged(&s, &Content { pages: 3, ..small }, "pages of a direct file");
    use_damaged(&s, &Content { size: MAX_SIZE + 1, ..small }, "size");
    // Entries: without a code, and with the right one: nowhere, a node where a page should be, the node itself, a cycle.
    let page = |off| Entry::Page(off);
    for (at, word) in [
        (leaf, 12345),
        (leaf, u64::MAX),
        (leaf, top.link_word(0, leaf)),
        (leaf, node.entry_word(0, page(12352))),
        (leaf + 8, node.entry_word(1, page(root.off))),
        (root.off, top.link_word(0, root.off)),
        (root.off + 16, top.link_word(2, leaf + 8)),
    ] {
        let old: u64 = s.memory().load(Off::new(at)).unwrap();
        commit(&s, &mut large, |tx, _| Ok(tx.set(Off::new(at), &word)?)).unwrap();
        use_damaged(&s, &large, &format!("entry {at:#x} is {word:#x}"));
        commit(&s, &mut large, |tx, _| Ok(tx.set(Off::new(at), &old)?)).unwrap();
    }
    check(s.memory(), &large, &mut |p| panic!("{p}"));
}

#[test]
fn a_cycle_ends() {
    let s = pram::Session::in_memory(1 << 20).unwrap();
    let mut c = Content::default();
    put(&s, &mut c, (1 << 57) - 1, b"x").unwrap();
    let root = Root::unpack(c.root);
    // All entries of the root refer to a node of which all do: 512 to the fifth paths, were it not for their codes.
    let Ok(Form::Tree(top)) = form(s.memory(), &c) else { panic!("a tree") };
    for i in 0..top.len {
        commit(&s, &mut c, |tx, _| Ok(tx.set(top.at(i), &top.link_word(i, root.off))?)).unwrap();
    }
    use_damaged(&s, &c, "cycle");
}

#[test]
fn salvage_keeps_what_is_whole() {
    let s = pram::Session::in_memory(4 << 20).unwrap();
    let mut c = Content::default();
    put(&s, &mut c, 0, &[1; 200_000]).unwrap();
    put(&s, &mut c, 1 << 45, &[2; 3]).unwrap();
    punch_all(&s, &mut c, 40_960, 45_056);
    let Ok(Form::Tree(mut node)) = form(s.memory(), &c) else { panic!("a tree") };
    while let Some(child) = (node.height > 1).then(|| node.child(s.memory(), 0).unwrap().unwrap()) {
        node = child;
    }
    commit(&s, &mut c, |tx, _| Ok(tx.set(node.at(3), &7u64)?)).unwrap();
    let mut saved = c;
    commit(&s, &mut saved, |tx, c| salvage(tx, c).map(|lost| assert_eq!(lost, PAGE))).unwrap();
    assert_eq!((saved.size, saved.pages), (c.size, 49 - 2 + 1));
    check(s.memory(), &saved, &mut |p| panic!("{p}"));
    let mut bytes = vec![9; 200_100];
    read(s.memory(), &saved, 0, &mut bytes).unwrap();
    for (i, b) in bytes.iter().enumerate() {
        let lost = (12_288..16_384).contains(&i) || (40_960..45_056).contains(&i) || i >= 200_000;
        assert_eq!(*b, u8::from(!lost), "byte {i}");
    }
    read(s.memory(), &saved, 1 << 45, &mut bytes[..3]).unwrap();
    assert_eq!(bytes[..3], [2; 3]);
}

/// An entry that leads to another file's block: neither is that zeroed where the size moves over it, nor freed.
#[test]
fn a_damaged_entry_harms_nobody_else() {
    let s = pram::Session::in_memory(4 << 20).unwrap();
    let (mut other, mut c) = (Content::default(), Content::default());
    put(&s, &mut other, 0, &[7; 3000]).unwrap();
    put(&s, &mut c, 0, &[1; 50_000]).unwrap();
    commit(&s, &mut c, |tx, c| allocate(tx, c, 50_000, 50_000, true).map(|_| ())).unwrap();
    let block = Root::unpack(other.root).off;
    let Ok(Form::Tree(leaf)) = form(s.memory(), &c) else { panic!("a tree") };
    for page in [3, 20] {
        let at = leaf.at(page);
        let old: u64 = s.memory().load(at).unwrap();
        for word in [block, old ^ 1 << 50, leaf.entry_word(page, Entry::Page(block))] {
            commit(&s, &mut c, |tx, _| Ok(tx.set(at, &word)?)).unwrap();
            if page == 20 {
                commit(&s, &mut c, |tx, c| truncate(tx, c, 100_000)).expect("the size moves over it");
                assert!(commit(&s, &mut c, |tx, c| write(tx, c, 20 * PAGE, &[3; 9000])).is_err());
            }
            assert!(commit(&s, &mut c, |tx, c| truncate(tx, c, 100)).is_err());
            assert!(commit(&s, &mut c, |tx, c| punch(tx, c, 0, 100_000).map(|_| ())).is_err());
            assert!(commit(&s, &mut c, free_all).is_err());
            assert_eq!(whole(s.memory(), &other), [7; 3000]);
            assert!(s.memory().is_allocated(block).unwrap());
        }
        commit(&s, &mut c, |tx, _| Ok(tx.set(at, &old)?)).unwrap();
    }
    check(s.memory(), &c, &mut |p| panic!("{p}"));
    commit(&s, &mut c, free_all).unwrap();
}

/// A bit flips, and an entry leads to another file's page, or the root to another file's tree: of the right types, so that
/// only the codes tell.
#[test]
fn another_files_pages_are_not_followed() {
    let s = pram::Session::in_memory(4 << 20).unwrap();
    let make = |owner| {
        let mut c = Content { owner, ..Content::default() };
        put(&s, &mut c, 0, &[owner as u8; 50_000]).unwrap();
        c
    };
    let (mut c, other) = (make(1), make(2));
    let [leaf, others] = [&c, &other].map(|c| match form(s.memory(), c) {
        Ok(Form::Tree(leaf)) => leaf,
        _ => panic!("a tree"),
    });
    let refused = |c: &Content, what: &str| {
        let e = read(s.memory(), c, 3 * PAGE, &mut [0; 10]).expect_err(what);
        assert!(e.to_string().contains("check code") && e.errno() == Errno::UCLEAN, "{what}: {e}");
        assert!(commit(&s, &mut c.clone(), |tx, c| write(tx, c, 3 * PAGE, &[9; 10])).is_err(), "{what}");
        assert!(commit(&s, &mut c.clone(), free).is_err(), "{what}");
        let mut problems = 0;
        check(s.memory(), c, &mut |_| problems += 1);
        assert!(problems > 0, "{what}");
    };
    refused(&Content { root: other.root, ..c }, "the root of another file");
    // The word of another file's entry; the same, and only the offset; that of another page of this file.
    let word = |node: Node, i: u64| s.memory().load(node.at(i)).unwrap();
    let (old, theirs) = (word(leaf, 3), word(others, 3));
    let offset = (1 << 47) - 1;
    for (what, new) in
        [("an entry", theirs), ("an offset", old & !offset | theirs & offset), ("a neighbour", word(leaf, 4))]
    {
        commit(&s, &mut c, |tx, _| Ok(tx.set(leaf.at(3), &new)?)).unwrap();
        refused(&c, what);
    }
    commit(&s, &mut c, |tx, _| Ok(tx.set(leaf.at(3), &old)?)).unwrap();
    assert_eq!(whole(s.memory(), &c), [1; 50_000]);
    assert_eq!(whole(s.memory(), &other), [2; 50_000]);
}
