//! Direct access: programs under `conquest run` do what they do elsewhere, and the mount sees it at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::lab::{self, program, Lab, NOBODY};
use crate::{suites, tree, Outcome, Skip, Test};

pub const TESTS: &[Test] = &[
    ("direct::programs_do_the_same_as_elsewhere", programs),
    ("direct::programs_of_a_user_do_the_same_as_elsewhere", programs_of_a_user),
    ("direct::the_mount_sees_at_once_what_a_program_does", seen_at_once),
    ("direct::files_larger_than_memory_are_read_and_changed", large),
    ("direct::calls_are_counted", counted),
    ("direct::two_pools_are_served_beside_each_other", two_pools),
    ("direct::pjdfstest_passes", pjdfstest),
    ("direct::fsx_finds_nothing", fsx),
];

/// Steps of many programs, in a directory of their own. What they print is compared too.
const STEPS: &[(&str, &str)] = &[
    ("sh", "mkdir -p a/b/c; echo one >a/1; echo two >>a/1; cat a/1; ln -s ../1 a/b/link; cat a/b/link; ls -l a | wc -l"),
    ("sh", "cd a/b && echo below >c/x && cd c && cat x ../../1 && cat ../link && pwd | sed 's#.*/##'"),
    ("sh", "for i in $(seq 50); do echo $i >a/$i; done; ls a | sort -n | head -3; rm a/4*; ls a | wc -l"),
    ("sh", "(cat a/1; echo sub >a/sub) & wait; cat <a/sub; exec 3<a/1; read x <&3; read y <&3; echo $x $y; exec 3<&-"),
    ("sh", "exec 5>a/out; echo first >&5; sh -c 'echo child >&5'; echo last >&5; exec 5>&-; cat a/out"),
    ("cp", "cp -a a copy; diff -r a copy && mv copy moved && du -a moved | wc -l; stat -c '%n %s %a %h' moved/1; touch -d 2020-01-02 moved/1; stat -c %y moved/1"),
    ("cp", "truncate -s 100000 big; dd if=/dev/zero of=big bs=4096 count=3 conv=notrunc status=none; sha1sum big; split -b 30000 big part.; cat part.* | cmp - big; rm part.*; ls"),
    ("cp", "chmod 640 a/1; stat -c %a a/1; ln a/1 hard; stat -c %h hard; readlink a/b/link; realpath --relative-to=. a/b/link; sort -r a/1; tac a/1; wc a/1; install -m 600 a/1 inst; stat -c %a inst"),
    ("find", "find . -type f | sort | xargs sha1sum; find . -name '1*' -newer big | sort; find a -depth -print | sort"),
    ("find", "cp -r /usr/include/linux inc && diff -r /usr/include/linux inc; find inc -name 'a*.h' -exec head -c1 {} ';' | wc -c; find inc -name 'f*.h' -exec cat {} + | sort | cksum; rm -r inc; ls"),
    ("tar", "tar cf all.tar a moved; mkdir out; tar xf all.tar -C out; diff -r a out/a; tar tf all.tar | sort | head; rm -r out all.tar"),
    ("rsync", "rsync -a a/ synced/; diff -r a synced; rsync -ain a/ synced/ | grep -v '^\\.'; rm -rf synced"),
    ("python3", "python3 -c \"\nimport os, shutil, tempfile\nos.makedirs('py/x/y'); open('py/f','w').write('text'*1000)\nwith open('py/f','r+b') as f: f.seek(10); f.write(b'HERE'); f.seek(0); print(f.read(20))\nprint(sorted(os.listdir('py')), os.path.getsize('py/f')); shutil.copytree('py','py2'); os.rename('py2/f','py2/g')\nprint([ (r.split('/')[-1], sorted(d), sorted(f)) for r,d,f in os.walk('py2')])\nfd=os.open('py/f',os.O_RDWR|os.O_APPEND); os.write(fd,b'end'); print(os.fstat(fd).st_size, os.lseek(fd,-3,2), os.read(fd,9)); os.close(fd)\ntry: os.open('py/none',0)\nexcept OSError as e: print(e.errno)\nshutil.rmtree('py'); print(os.path.exists('py'))\n\""),
    ("perl", "perl -e 'open F,\">pl\" or die; print F \"a\\nb\\n\"; close F; open F,\"<pl\"; print <F>; close F; print -s \"pl\", \"\\n\"; unlink \"pl\"; opendir D,\"a\"; print scalar(grep {!/^\\./} readdir D),\"\\n\"'"),
    ("git", "git init -q repo && cd repo && git config user.email a@b && git config user.name n && cp -r ../a . && git add . && GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z' git commit -qm first && git rev-parse HEAD && echo more >>a/1 && git status --short && git diff --stat && git stash -q && git status --short && git checkout -q -b other && git fsck --full && git clone -q . ../clone && git -C ../clone log --format=%s"),
    ("sqlite3", "sqlite3 db \"create table t(a,b); insert into t values(1,'x'),(2,'y');\"; for i in 1 2 3 4 5; do sqlite3 db \"insert into t values($i,'z');\"; done; sqlite3 db 'select sum(a),count(*) from t; pragma integrity_check;'; sqlite3 db 'pragma journal_mode=wal;' \"insert into t values(9,'w');\"; sqlite3 db 'select count(*) from t;'; rm -f db-*"),
    ("make", "printf 'all: x y\\n\\tcat x y >z\\nx:\\n\\techo x >x\\ny:\\n\\techo y >y\\n' >Makefile; make -s -j2; cat z; make -s; rm Makefile x y"),
    ("cc", "printf '#include <stdio.h>\\nint main(){FILE*f=fopen(\"made\",\"w\");fprintf(f,\"%%d\\\\n\",42);fclose(f);puts(\"ran\");}' >p.c; cc p.c -o p && ./p && cat made && rm p"),
    ("sh", "mkdir gone && cd gone && rmdir ../gone && env pwd; ls .. | head -3; touch x; cd ..; pwd | wc -l"),
    ("dd", "for o in append direct dsync sync nonblock nofollow; do dd if=a/1 of=o.$o oflag=$o status=none; done; for c in nocreat excl notrunc fsync fdatasync sparse; do dd if=big of=c.$c conv=$c bs=1000 count=9 status=none; done; cksum o.* c.*; rm o.* c.*"),
    ("bash", "cp -r a sh && cd sh && bash -c 'exec 5<>rw; echo rw >&5; read -u 5 z; exec 5>&-; cat rw; set -C; echo no >rw; set +C; cat <(cat 1) - <<<here; mapfile -t A <1; echo ${#A[@]} $(<rw); coproc cat; echo co >&${COPROC[1]}; read l <&${COPROC[0]}; echo $l; ulimit -f 1; (trap \"\" XFSZ; seq 1000 >lim); stat -c %s lim; exec 8>lk; flock 8; flock -n lk true; echo $?; exec 8>&-; flock -n lk true; echo $?'; cd ..; rm -r sh"),
    ("patch", "cp -r a was && cp -r a now && sed -i s/4/four/ now/* && rm now/5 && ln now/6 now/six; diff -ruN was now >p; patch -s -p1 -d was <p; diff -rq was now; patch -s -R -b -p1 -d was <p; ls was; echo junk | patch -p0; rm -r was now p"),
    ("find", "cp -r a fd && find fd -name '1?' -delete; find fd -type f -execdir basename {} ';' | sort | cksum; find fd -type f -print0 | xargs -0 -P4 -n9 cksum | sort | cksum; find fd -links 2; find fd -empty; find fd -xdev -newer big -perm 644 | wc -l; rm -r fd"),
    ("cpio", "mkdir pass && find a -depth | sort | cpio -pdlm --quiet pass; stat -c %h pass/a/2; find a -depth | cpio -o -H newc --quiet | cpio -t --quiet | wc -l; rm -r pass"),
    ("unzip", "zip -qr z.zip a && unzip -q z.zip -d un && diff -r a un/a; zip -q -u z.zip big; unzip -p z.zip a/2; unzip -l z.zip | wc -l; rm -r z.zip un"),
    ("tar", "tar cf t.tar -g snap a/2 && tar rf t.tar a/3 && tar --delete -f t.tar a/2; tar tf t.tar; cp -r a t && tar --remove-files -cf r.tar t; ls -d t; tar xf r.tar --one-top-level=o --strip-components=1; diff -r a o; tar xf r.tar -O t/2; rm -r o r.tar t.tar snap"),
    ("rsync", "rsync -a a/ one/ && rsync -a --link-dest=$PWD/one a/ two/; stat -c %h two/2; echo x >>a/2; rsync -a --inplace --no-whole-file a/ two/; rsync -a --delete --backup-dir=$PWD/old --backup moved/ two/; ls old | wc -l; rm -r one two old"),
    ("setfacl", "mkdir acl && setfacl -m u:1:rwx,d:g:7:rx acl && touch acl/f && getfacl -n acl acl/f; setfattr -n user.a -v 1 acl/f; cp --preserve=xattr acl/f acl/g; getfattr -d acl/g; setfattr -x user.a acl/f; getfattr -n user.a acl/f; rm -r acl"),
    ("setpriv", "mkdir -m 1777 sticky && cp a/2 sticky/root && D='setpriv --reuid 1 --regid 1 --clear-groups sh -c' && $D 'cat sticky/root; echo d >sticky/d; rm sticky/root; echo no >a/2; touch sticky/root'; stat -c '%u %a' sticky/d; prlimit --nofile=10 cat a/2; unshare -m sh -c 'mount -t tmpfs t sticky; echo q >sticky/q; cat sticky/q a/2'; ls sticky; rm -r sticky"),
    ("cp", "mkdir bin && cp /bin/cat /bin/sh bin && bin/cat a/2 && bin/sh -c 'bin/cat <a/2'; printf '#!'$PWD'/bin/sh\\necho script\\n' >sc && chmod +x sc && ./sc; mv bin/cat bin/tac && bin/tac a/2; rm -r bin sc"),
    ("busybox", "busybox sh -c 'echo hi >bb; busybox cat bb; busybox cp bb bc; busybox sed -i s/hi/ho/ bc; exec 3>>bc; echo more >&3; busybox cat bc; busybox rm bb bc'"),
    ("strace", "strace -f -e trace=none -o st sh -c 'cat a/2 | cat; cat a/3 >o; cat o'; grep -c exited st; rm st o"),
    ("gdb", "gdb -q -batch -ex 'catch syscall openat' -ex run -ex c -ex delete -ex c --args cat a/2 2>&1 | grep -c 'exited normally'"),
    ("valgrind", "valgrind -q cat a/2"),
    ("perl", "perl -MSDBM_File -MFcntl -e 'tie %h,\"SDBM_File\",\"sd\",O_RDWR|O_CREAT,0644; $h{$_}=$_ for 1..300; print scalar(keys %h),\"\\n\"'; perl -pi.bak -e s/2/two/ a/2; cat a/2 a/2.bak; rm sd.*"),
    ("node", "node -e 'const fs=require(\"fs\"),p=fs.promises;(async()=>{await Promise.all([...Array(50).keys()].map(i=>p.writeFile(\"n\"+i,\"v\"+i)));console.log((await Promise.all([...Array(50).keys()].map(i=>p.readFile(\"n\"+i,\"utf8\")))).join(\"\").length);fs.cpSync(\"a\",\"na\",{recursive:true});console.log(fs.readdirSync(\"na\").sort().length,require(\"child_process\").execSync(\"cat n7\")+\"\");await new Promise(r=>fs.createReadStream(\"big\").pipe(fs.createWriteStream(\"nb\")).on(\"finish\",r));console.log(fs.statSync(\"nb\").size)})()'; rm -r n?* "),
    ("npm", "export HOME=$PWD/npm npm_config_offline=true npm_config_audit=false npm_config_update_notifier=false; mkdir -p npm/dep npm/app; cd npm/dep; echo '{\"name\":\"dep\",\"version\":\"1.0.0\",\"bin\":{\"hi\":\"hi.js\"}}' >package.json; printf '#!/usr/bin/env node\nconsole.log(\"hi\")\n' >hi.js; npm pack --silent; cd ../app; npm init -y >../said; npm install --silent ../dep/dep-1.0.0.tgz; node_modules/.bin/hi; npm ls --parseable | wc -l; npm ci --silent; npm exec --offline hi; cd ../..; rm -r npm"),
    ("javac", concat!("cat >Steps.java <<'END'\n", include_str!("direct.java"), "\nEND\njavac Steps.java && jar cf steps.jar *.class && rm *.class && java -cp steps.jar Steps; rm Steps.java steps.jar")),
    ("redis-server", "mkdir redis; cd redis; serve() { redis-server --port 0 --unixsocket $PWD/s --appendonly yes --appendfsync always --daemonize yes --logfile log --pidfile $PWD/pid >said; until [ \"$(redis-cli -s s ping 2>&1)\" = PONG ]; do sleep 0.1; done; }; serve; seq -f 'set k%.0f v' 2000 | redis-cli -s s | sort | uniq -c; redis-cli -s s save; kill -9 $(cat pid); serve; redis-cli -s s dbsize; redis-cli -s s shutdown nosave; ls dump.rdb appendonlydir/*.manifest; cd ..; rm -r redis"),
    ("python3", concat!("python3 - <<'END'\n", include_str!("direct.py"), "\nEND")),
    ("python3", concat!("python3 - <<'END'\n", include_str!("direct_descriptors.py"), "\nEND")),
    ("python3", concat!("python3 - <<'END'\n", include_str!("direct_addresses.py"), "\nEND")),
    ("python3", concat!("python3 - <<'END'\n", include_str!("direct_privileges.py"), "\nEND")),
    ("python3", concat!("python3 - <<'END'\n", include_str!("direct_limits.py"), "\nEND")),
    ("cc", include_str!("direct_raw.sh")),
    // Elsewhere, in processes that never look at the pool.
    ("python3", concat!("cd / && python3 - <<'END'\n", include_str!("direct_elsewhere.py"), "\nEND")),
    ("python3", "cd / && t=$(mktemp) && touch \"$t\" && echo touched; rm \"$t\"; python3 -c \"import ctypes; c = ctypes.CDLL(None, use_errno=True); print([(c.access(ctypes.c_void_p(at), 0), ctypes.get_errno()) for at in (0, 8, 0x8000)])\""),
];

const STEPS_OF_A_USER: &[(&str, &str)] =
    &[("python3", concat!("python3 - <<'END'\n", include_str!("direct_user.py"), "\nEND"))];

/// A command that runs under direct access.
pub fn direct(lab: &Lab, args: &[&str]) -> Command {
    lab.command(&[&["run", "--"], args].concat())
}

/// Puts the library where the lab's program looks for it.
pub fn need_library(lab: &Lab) -> Result<(), Skip> {
    const LIBRARY: &str = "libconquest_preload.so";
    let built = Path::new(env!("CARGO_BIN_EXE_conquest")).with_file_name(LIBRARY);
    std::fs::copy(&built, lab.path(LIBRARY)).map_err(|e| Skip(format!("needs {}: {e}", built.display())))?;
    Ok(())
}

fn programs() -> Outcome {
    let lab = Lab::mounted("256M");
    need_library(&lab)?;
    let (here, there) = (lab.mnt().join("work"), lab.path("plain"));
    for dir in [&here, &there] {
        std::fs::create_dir(dir).expect("mkdir");
    }
    for (needed, script) in STEPS {
        if lab::require(needed).is_err() {
            println!("without {needed}");
            continue;
        }
        let elsewhere = said(program("sh", &["-c", script]).current_dir(&there));
        let here = said(direct(&lab, &["sh", "-c", script]).current_dir(&here));
        assert_eq!(here, elsewhere, "{script}");
    }
    // Times are those of the run; git keeps them and inode numbers in its files.
    let described = |dir: &PathBuf| -> BTreeMap<_, _> {
        let all = tree::describe(dir).into_iter().filter(|(path, _)| !path.iter().any(|name| name == ".git"));
        all.map(|(path, item)| (path, item.without_time())).collect()
    };
    tree::assert_same(&described(&there), &described(&here), "under direct access");
    lab.umount();
    lab.check();
    Ok(())
}

/// A user who may open no file by its handle: paths lead to those that are made real.
fn programs_of_a_user() -> Outcome {
    const LOOK: &str = "find . -name .git -prune -o -printf '%P %y %m %n %l\\n' | sort; find . -name .git -prune -o -type f -exec cksum {} + | sort -k3";
    let lab = Lab::new();
    need_library(&lab)?;
    lab.mount_home(&NOBODY, "256M")?;
    let conquest = lab.text("conquest");
    let with_access = [&NOBODY[..], &[&conquest, "run", "--"]].concat();
    // Root may not look into the user's mount.
    let said = |before: &[&str], dir: &str, script: &str| {
        let dir = lab.text(dir);
        let words = [before, &["sh", "-c", "cd \"$1\" && eval \"$2\"", "sh", &dir, script]].concat();
        let mut command = program(words[0], &words[1..]);
        said(command.current_dir("/").env("HOME", lab.path("home")).env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin"))
    };
    for (needed, script) in STEPS.iter().chain(STEPS_OF_A_USER) {
        if lab::require(needed).is_ok() {
            let elsewhere = said(&NOBODY, "home/plain", script);
            assert_eq!(said(&with_access, "home/mnt", script), elsewhere, "{script}");
        }
    }
    assert_eq!(said(&NOBODY, "home/mnt", LOOK), said(&NOBODY, "home/plain", LOOK));
    lab.umount_home(&NOBODY);
    Ok(())
}

/// Output, errors and exit status.
fn said(command: &mut Command) -> (String, String, Option<i32>) {
    let ran = command.stdin(Stdio::null()).output().expect("a shell");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (text(ran.stdout), text(ran.stderr), ran.status.code())
}

/// The test's own process looks through the mount.
fn seen_at_once() -> Outcome {
    let lab = Lab::mounted("256M");
    need_library(&lab)?;
    let dir = lab.mnt();
    let run = |script: &str| lab::ok(direct(&lab, &["sh", "-c", script]).current_dir(&dir));
    let names = |dir: &Path| std::fs::read_dir(dir).expect("a directory").count();
    for round in 0..30 {
        let file = dir.join(format!("f{round}"));
        assert!(!file.exists());
        run(&format!("echo {round} >f{round}"));
        assert_eq!(std::fs::read_to_string(&file).expect("made there"), format!("{round}\n"));
        assert_eq!(names(&dir), round + 1);
        run(&format!("echo more >>f{round}; chmod 600 f{round}"));
        assert_eq!(std::fs::read_to_string(&file).expect("appended to there"), format!("{round}\nmore\n"));
        run(&format!("mv f{round} g{round}"));
        assert!(!file.exists());
        assert_eq!(names(&dir), round + 1);
    }
    lab.umount();
    lab.check();
    Ok(())
}

/// Also those that name descriptors in memory, or as a range.
fn counted() -> Outcome {
    lab::require("python3")?;
    let lab = Lab::mounted("64M");
    need_library(&lab)?;
    let script = "import os, select, socket\n\
        f = os.open('f', os.O_RDWR | os.O_CREAT); p = select.poll(); p.register(f); p.poll(0)\n\
        s, t = socket.socketpair(); g = os.dup(os.open('f', os.O_RDONLY)); socket.send_fds(s, [b'x'], [g])\n\
        h = os.open('f', os.O_RDONLY); os.closerange(h, h + 9)";
    let ran = lab.command(&["run", "--check", "--", "python3", "-c", script]).current_dir(lab.mnt()).output();
    let told = String::from_utf8_lossy(&ran.expect("python3").stderr).into_owned();
    assert!(told.contains("1 by the mount: poll\n") && told.contains("1 by the mount: sendmsg"), "{told}");
    assert!(told.contains(" calls on pools were direct"), "{told}");
    // From a directory above the mount, which is named `mnt` there.
    let script = "mkdir mnt/a && echo one >mnt/a/f && cd mnt/a && cat f ../a/f && cd ../.. && cat mnt/a/f && ls mnt/a mnt && rm -r mnt/a";
    let ran =
        lab.command(&["run", "--check", "--", "sh", "-c", script]).current_dir(lab.path("")).output().expect("sh");
    let told = [ran.stdout, ran.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(told[0].starts_with("one\none\none\nmnt:\na\nf\n\nmnt/a:\nf\n"), "{told:?}");
    let counts: Vec<u64> = told[1].split_whitespace().filter_map(|word| word.parse().ok()).take(2).collect();
    assert!(counts[0] > 20 && counts[0] == counts[1], "{told:?}");
    lab.umount();
    Ok(())
}

/// An engine knows nothing of another's descriptors: calls that name some of both do what the mounts do.
fn two_pools() -> Outcome {
    lab::require("python3")?;
    let labs = [Lab::mounted("64M"), Lab::mounted("64M")];
    need_library(&labs[0])?;
    let script = include_str!("direct_two_pools.py");
    let pools = labs.each_ref().map(|lab| lab.text("mnt"));
    let arguments = ["python3", "-c", script, &pools[0], &pools[1]];
    let elsewhere = said(program(arguments[0], &arguments[1..]).current_dir("/"));
    for lab in &labs {
        let names: Vec<_> = std::fs::read_dir(lab.mnt()).expect("a directory").flatten().collect();
        assert!(names.is_empty(), "{names:?}");
    }
    let here = said(direct(&labs[0], &arguments).current_dir("/"));
    assert_eq!(here, elsewhere);
    for lab in &labs {
        lab.umount();
        lab.check();
    }
    Ok(())
}

fn pjdfstest() -> Outcome {
    let suite = suites::tool("pjdfstest")?;
    let lab = Lab::mounted("256M");
    need_library(&lab)?;
    let verdicts = suites::run_pjdfstest(direct(&lab, &[&suite.to_string_lossy()]), &lab, &lab.mnt(), &[]);
    assert!(verdicts.len() > 300, "pjdfstest ran {} tests only", verdicts.len());
    lab.umount();
    lab.check();
    Ok(())
}

fn fsx() -> Outcome {
    let suite = suites::tool("fsx")?;
    let lab = Lab::mounted("256M");
    need_library(&lab)?;
    suites::run_fsx(&|| direct(&lab, &[&suite.to_string_lossy()]), &lab, 1, 5_000);
    lab.umount();
    lab.check();
    Ok(())
}

/// Their content lies on the disk, which only the mount's server has open.
fn large() -> Outcome {
    let lab = Lab::new();
    lab.ok(&["format", &lab.pool(), "--nvram", "64M", "--disk", &format!("{}:512M", lab.text("disk"))]);
    lab.mount();
    need_library(&lab)?;
    let elsewhere = lab.path("plain");
    std::fs::create_dir(&elsewhere).expect("mkdir");
    let script = "seq 9000000 >large; sha1sum large; cp large copy; cmp large copy; seq 300000 >>copy; tail -c 100 copy; \
        printf HERE | dd of=large bs=1 seek=30000000 conv=notrunc status=none; dd if=large bs=1 skip=29999990 count=30 status=none; \
        truncate -s 50000000 copy; sha1sum copy large; grep -c 7777 large; sort -n copy | tail -1; rm copy; ls -s --block-size=1M | wc -l";
    let there = said(program("sh", &["-c", script]).current_dir(&elsewhere));
    let here = said(direct(&lab, &["sh", "-c", script]).current_dir(lab.mnt()));
    assert_eq!(here, there);
    lab.umount();
    lab.check();
    Ok(())
}
