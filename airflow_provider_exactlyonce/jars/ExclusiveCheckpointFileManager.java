package exactlyonce;

import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.RemoteFileChangedException;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/** Writes to the file's place at once: the object appears when it is closed, and a new one only if there is none. */
public final class ExclusiveCheckpointFileManager extends FileSystemBasedCheckpointFileManager {
  private final FileSystem store;

  public ExclusiveCheckpointFileManager(Path path, Configuration conf) throws IOException {
    super(path, conf);
    store = path.getFileSystem(conf);
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
    FSDataOutputStream file;
    try {
      // Whether there is a directory of this name is not asked: each such look would cost as much as a write.
      FSDataOutputStreamBuilder<?, ?> builder = store.createFile(path).overwrite(true).recursive();
      builder.opt("fs.s3a.create.performance", true);
      file = (overwrite ? builder : builder.must("fs.option.create.conditional.overwrite", true)).build();
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
        } catch (RemoteFileChangedException error) {
          throw (IOException) new FileAlreadyExistsException(path + " is there").initCause(error);
        }
      }

      @Override
      public synchronized void cancel() {
        if (ended) return;
        ended = true;
        file.abort();
      }
    };
  }
}
