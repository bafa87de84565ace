package exactlyonce;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/** Moves a finished file into its place or, if there must be no other, links it there; starts no program for it. */
public final class LocalCheckpointFileManager extends FileSystemBasedCheckpointFileManager {
  /** Notes checksums beside files. They get the rights that this process gives its files; Hadoop would call chmod. */
  private final LocalFileSystem files =
      new LocalFileSystem(
          new RawLocalFileSystem() {
            @Override
            public void setPermission(Path path, FsPermission permission) {}
          });

  public LocalCheckpointFileManager(Path path, Configuration conf) throws IOException {
    super(path, conf);
    files.initialize(URI.create("file:///"), conf);
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
    Path unfinished = new Path(path.getParent(), "." + path.getName() + "." + UUID.randomUUID() + ".tmp");
    FSDataOutputStream file;
    try {
      file = files.create(unfinished);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return new CancellableFSDataOutputStream(file) {
      private boolean ended;

      @Override
      public synchronized void close() throws IOException {
        if (ended) return;
        ended = true;
        try {
          file.close();
          if (overwrite) {
            Files.deleteIfExists(note(path)); // a file without one is read, and one with another's is not
            move(local(unfinished), local(path));
          } else if (!link(local(unfinished), local(path))) {
            move(local(unfinished), local(path));
          }
          move(note(unfinished), note(path));
        } catch (java.nio.file.FileAlreadyExistsException error) {
          throw (IOException) new FileAlreadyExistsException(path + " is there").initCause(error);
        } finally {
          files.delete(unfinished, false);
        }
      }

      @Override
      public synchronized void cancel() {
        if (ended) return;
        ended = true;
        try {
          file.close();
          files.delete(unfinished, false);
        } catch (IOException error) {
          throw new UncheckedIOException(error);
        }
      }
    };
  }

  private java.nio.file.Path local(Path path) {
    return files.pathToFile(path).toPath();
  }

  private java.nio.file.Path note(Path path) {
    return local(files.getChecksumFile(path));
  }

  private static void move(java.nio.file.Path from, java.nio.file.Path to) throws IOException {
    Object moved = key(from);
    try {
      Files.move(from, to, StandardCopyOption.ATOMIC_MOVE);
    } catch (NoSuchFileException error) {
      // It may be done: NFS sends a request again whose answer was lost.
      if (!moved.equals(key(to))) throw error;
    }
  }

  private static Object key(java.nio.file.Path path) throws IOException {
    return Files.readAttributes(path, BasicFileAttributes.class).fileKey();
  }

  /** Whether it is linked to its place; where a file system has no links, a look comes first, as in Spark's own way. */
  private static boolean link(java.nio.file.Path finished, java.nio.file.Path place) throws IOException {
    try {
      Files.createLink(place, finished);
    } catch (FileSystemException | UnsupportedOperationException error) {
      boolean hasLinks = error instanceof java.nio.file.FileAlreadyExistsException;
      if (!hasLinks && Files.notExists(place)) return false;
      // What is there may be this link: NFS, again.
      if (!Files.isSameFile(finished, place)) throw new java.nio.file.FileAlreadyExistsException(place.toString());
    }
    return true;
  }
}
