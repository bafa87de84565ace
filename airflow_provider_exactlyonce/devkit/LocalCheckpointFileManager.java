package exactlyonce;

import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/** Moves or, if there must be no other, links a finished file into its place. Hadoop starts two programs for each file. */
public final class LocalCheckpointFileManager extends FileSystemBasedCheckpointFileManager {
  public LocalCheckpointFileManager(Path path, Configuration conf) {
    super(path, conf);
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
    java.nio.file.Path place = java.nio.file.Path.of(path.toUri().getPath());
    java.nio.file.Path unfinished = place.resolveSibling("." + path.getName() + "." + UUID.randomUUID() + ".tmp");
    OutputStream file;
    try {
      file = new BufferedOutputStream(Files.newOutputStream(unfinished, StandardOpenOption.CREATE_NEW));
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
          // Hadoop would check the new content by what it has once noted of an old one.
          Files.deleteIfExists(place.resolveSibling("." + path.getName() + ".crc"));
          if (overwrite || !link(place, unfinished)) Files.move(unfinished, place, StandardCopyOption.ATOMIC_MOVE);
        } catch (java.nio.file.FileAlreadyExistsException error) {
          throw (IOException) new FileAlreadyExistsException(path + " is there").initCause(error);
        } finally {
          Files.deleteIfExists(unfinished);
        }
      }

      @Override
      public synchronized void cancel() {
        if (ended) return;
        ended = true;
        try {
          file.close();
          Files.deleteIfExists(unfinished);
        } catch (IOException error) {
          throw new UncheckedIOException(error);
        }
      }
    };
  }

  /** Whether it is linked to its place; where a file system has no links, a look comes first, as in Spark's own way. */
  private static boolean link(java.nio.file.Path place, java.nio.file.Path finished) throws IOException {
    try {
      Files.createLink(place, finished);
      return true;
    } catch (java.nio.file.FileAlreadyExistsException error) {
      throw error;
    } catch (FileSystemException | UnsupportedOperationException error) {
      if (Files.exists(place)) throw new java.nio.file.FileAlreadyExistsException(place.toString());
      return false;
    }
  }
}
