// Bytes as a file that only this process sees, for readers that take a path.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "tests/fuzz/fuzz_target.h"

namespace eplb::fuzz {

class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
    Require(written == static_cast<ssize_t>(bytes.size()), "the memory file cannot be written");
  }
  ~MemoryFile() { (void)close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  const int descriptor_;
};

}  // namespace eplb::fuzz
