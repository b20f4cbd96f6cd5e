// A file that gets whole lines, each in one write.
#ifndef EPLB_CLIENT_LINE_FILE_H_
#define EPLB_CLIENT_LINE_FILE_H_

#include <atomic>
#include <string>

#include "absl/status/statusor.h"

namespace eplb {

// Opened with O_APPEND, so that lines of several threads do not mix. A line that cannot be written
// is told on stderr once; training goes on. Threads: Write is safe.
class LineFile {
 public:
  // Writes nothing.
  LineFile() = default;
  // Creates the file when there is none, and appends to it else. errors: Unavailable, naming the
  // path.
  static absl::StatusOr<LineFile> Open(const std::string& path);
  LineFile(LineFile&& other) noexcept;
  LineFile& operator=(LineFile&& other) noexcept;
  ~LineFile();

  bool is_open() const { return descriptor_ >= 0; }
  // Drops the lines of earlier runs. errors: Unavailable, naming the path.
  absl::Status Clear();
  // line: without the newline.
  void Write(std::string line);

 private:
  std::string path_;
  int descriptor_ = -1;
  std::atomic<bool> told_ = false;
};

}  // namespace eplb

#endif  // EPLB_CLIENT_LINE_FILE_H_
