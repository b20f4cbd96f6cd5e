// A rank's expert memory that only the training step and a commit may write: any other write
// ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "client/client.h"

namespace eplb {

// Every byte says layer, expert, tensor, position and the last step that trained it. One of a
// process at a time.
class GuardedMemory {
 public:
  GuardedMemory(int32_t num_layers, int32_t num_local_slots);
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  std::vector<ExpertTensorView> Tensors();
  // Writes the values of the experts after `step`; leaves the memory closed.
  void Train(const PlacementView& placement, int64_t step);
  int64_t CountWrong(const PlacementView& placement, int64_t step) const;
  // A commit may write now. on_second: called once, before the first byte goes into a second
  // tensor; only what a signal handler may do. Null: nothing is called.
  void OpenForCommit(void (*on_second)());

 private:
  void Visit(const PlacementView& placement, int64_t step,
             const std::function<void(std::byte*, std::byte)>& visitor) const;

  const int32_t num_layers_;
  const int32_t num_local_slots_;
};

}  // namespace eplb
