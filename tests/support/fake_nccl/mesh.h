// Sockets between every two ranks, found by the communicator's id: ranks are threads or processes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace eplb::fake_nccl {

// A file descriptor, closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_;
};

struct MeshAddress {
  std::string id;  // id of the communicator
  int32_t rank = 0;
  int32_t num_ranks = 1;
};

// One non-blocking stream socket for each rank, none for the own. Waits for all ranks, until there
// is something to read from `stop`: empty then, and with *error set when the system refuses.
std::vector<Descriptor> ConnectMesh(const MeshAddress& address, int stop, std::string* error);

}  // namespace eplb::fake_nccl
