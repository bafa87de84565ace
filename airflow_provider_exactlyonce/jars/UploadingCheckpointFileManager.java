package exactlyonce;

import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.StandardOpenOption;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Uploads a file when it is finished, and a new one only if there is none: for stores that keep this condition, and
 * whose uploads can't be given up, as whatever closes one makes the object.
 */
public final class UploadingCheckpointFileManager extends FileSystemBasedCheckpointFileManager {
  private final FileSystem store;

  public UploadingCheckpointFileManager(Path path, Configuration conf) throws IOException {
    super(path, conf);
    store = path.getFileSystem(conf);
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
    FileChannel finished;
    try {
      finished =
          FileChannel.open(
              Files.createTempFile("exactlyonce-", null), // it has no name any more once it is open
              StandardOpenOption.READ,
              StandardOpenOption.WRITE,
              StandardOpenOption.DELETE_ON_CLOSE);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return new CancellableFSDataOutputStream(new BufferedOutputStream(Channels.newOutputStream(finished))) {
      private boolean ended;

      @Override
      public synchronized void close() throws IOException {
        if (ended) return;
        ended = true;
        try (finished) {
          flush();
          upload(finished.position(0), path, overwrite);
        }
      }

      @Override
      public synchronized void cancel() {
        if (ended) return;
        ended = true;
        try {
          finished.close();
        } catch (IOException error) {
          throw new UncheckedIOException(error);
        }
      }
    };
  }

  private void upload(FileChannel finished, Path path, boolean overwrite) throws IOException {
    try {
      FSDataOutputStream object = store.create(path, overwrite);
      Channels.newInputStream(finished).transferTo(object); // what fails here leaves it open, and so unmade
      object.close();
    } catch (IOException error) {
      if (overwrite || !store.exists(path)) throw error;
      throw (IOException) new FileAlreadyExistsException(path + " is there").initCause(error);
    }
  }
}
