import java.io.*;
import java.nio.*;
import java.nio.channels.*;
import java.nio.file.*;
import java.nio.file.attribute.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;
import java.util.zip.*;
import static java.nio.file.StandardOpenOption.*;

public class Steps {
    static final Path DIR = Path.of("java");

    static Path in(String name) { return DIR.resolve(name); }

    static Stream<Path> all() throws IOException { return Files.walk(DIR).sorted(Comparator.reverseOrder()); }

    public static void main(String[] args) throws Exception {
        Files.createDirectory(DIR);
        try (Closeable threads = threads()) { channel(); }
        names();
        archive();
        Process cat = new ProcessBuilder("cat", "f3").directory(DIR.toFile()).redirectOutput(new File("java/out")).start();
        System.out.println(cat.waitFor() + " " + Files.size(in("out")));
        System.out.println(all().map(Path::toString).collect(Collectors.joining(" ")));
        for (Path path : all().toList()) Files.delete(path);
    }

    static Closeable threads() throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(8);
        List<Future<Long>> sizes = new ArrayList<>();
        for (int i = 0; i < 64; i++) {
            int n = i;
            sizes.add(threads.submit(() -> {
                Files.writeString(in("f" + n), "x".repeat(n * 1000));
                Files.writeString(in("f" + n), "more", APPEND);
                return Files.size(in("f" + n));
            }));
        }
        long sum = 0;
        for (Future<Long> size : sizes) sum += size.get();
        System.out.println(sum);
        return threads::shutdown;
    }

    static void channel() throws Exception {
        try (FileChannel file = FileChannel.open(in("c"), CREATE_NEW, READ, WRITE); FileChannel to = FileChannel.open(in("to"), CREATE, WRITE)) {
            file.write(ByteBuffer.wrap(new byte[10000]));
            MappedByteBuffer mapped = file.map(FileChannel.MapMode.READ_WRITE, 0, 20000);
            mapped.put(15000, (byte) 7);
            mapped.force();
            ByteBuffer one = ByteBuffer.allocate(1);
            file.read(one, 15000);
            try (FileLock lock = file.lock()) { System.out.println(one.get(0) + " " + file.size() + " " + lock.isValid()); }
            file.truncate(5000).force(true);
            System.out.println(file.transferTo(0, 9000, to) + " " + to.size());
        }
        try (AsynchronousFileChannel file = AsynchronousFileChannel.open(in("async"), CREATE, WRITE)) {
            System.out.println(file.write(ByteBuffer.wrap("async".getBytes()), 3).get());
        }
        try (RandomAccessFile file = new RandomAccessFile("java/random", "rws")) {
            file.setLength(100);
            file.seek(50);
            file.writeInt(5);
            file.seek(50);
            System.out.println(file.readInt());
        }
    }

    static void names() throws Exception {
        Files.setAttribute(in("to"), "user:note", ByteBuffer.wrap("v".getBytes()));
        System.out.println(Files.getFileAttributeView(in("to"), UserDefinedFileAttributeView.class).list());
        Files.setPosixFilePermissions(in("to"), PosixFilePermissions.fromString("rw-r-----"));
        Files.setLastModifiedTime(in("to"), FileTime.fromMillis(1000000));
        Files.createSymbolicLink(in("symbolic"), Path.of("moved"));
        Files.createLink(in("hard"), in("to"));
        Files.move(in("to"), in("moved"), StandardCopyOption.ATOMIC_MOVE);
        Files.copy(in("symbolic"), in("copied"), StandardCopyOption.COPY_ATTRIBUTES);
        PosixFileAttributes copied = Files.readAttributes(in("copied"), PosixFileAttributes.class);
        System.out.println(PosixFilePermissions.toString(copied.permissions()) + " " + copied.lastModifiedTime());
    }

    static void archive() throws Exception {
        var uri = java.net.URI.create("jar:" + in("zip").toAbsolutePath().toUri());
        try (FileSystem zip = FileSystems.newFileSystem(uri, Map.of("create", "true"))) {
            for (int i = 0; i < 64; i++) Files.copy(in("f" + i), zip.getPath("/f" + i));
        }
        try (ZipFile zip = new ZipFile("java/zip")) { System.out.println(zip.size()); }
    }
}
