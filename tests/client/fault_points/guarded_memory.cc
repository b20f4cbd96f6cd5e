#include "tests/client/fault_points/guarded_memory.h"

#include <sys/mman.h>

#include <array>
#include <csignal>
#include <new>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

struct Shape {
  const char* name;
  Role role;
  int64_t row_bytes;
  int64_t row_stride;
};
constexpr std::array<Shape, 3> kShapes = {
    {{.name = "w1", .role = Role::kWeight, .row_bytes = 3000, .row_stride = 3000},
     {.name = "w2", .role = Role::kWeight, .row_bytes = 500, .row_stride = 512},
     {.name = "moment", .role = Role::kState, .row_bytes = 1100, .row_stride = 1150}}};
// Bytes of a tensor with the longest stride: 32 rows of 3000 bytes are less.
constexpr size_t kTensorBytes = size_t{1} << 17;

// The handler of SIGSEGV reads it.
struct Region {
  std::byte* begin = nullptr;
  size_t num_tensors = 0;
  int32_t num_opened = 0;
  void (*on_second)() = nullptr;
};
Region region;

std::byte* TensorAt(size_t index) { return region.begin + index * kTensorBytes; }

void OnWrite(int signal, siginfo_t* info, void*) {
  auto* const at = static_cast<std::byte*>(info->si_addr);
  const bool ours = at >= region.begin && at < TensorAt(region.num_tensors);
  if (!ours || region.on_second == nullptr) {
    (void)std::signal(signal, SIG_DFL);  // the write comes again, and ends the process
    return;
  }
  const auto tensor = static_cast<size_t>(at - region.begin) / kTensorBytes;
  mprotect(TensorAt(tensor), kTensorBytes, PROT_READ | PROT_WRITE);
  if (++region.num_opened == 2) region.on_second();
}

void Protect(int protection) {
  mprotect(region.begin, region.num_tensors * kTensorBytes, protection);
}

std::byte Content(int32_t layer, int32_t expert, size_t tensor, int64_t step, int64_t position) {
  const uint64_t seed = (static_cast<uint64_t>(step) * 1009 + static_cast<uint64_t>(layer) * 131 +
                         static_cast<uint64_t>(expert) * 31 + tensor * 7 + 1) *
                        0x9E3779B97F4A7C15ULL;
  return static_cast<std::byte>((seed >> 32) + static_cast<uint64_t>(position) * 37);
}

}  // namespace

GuardedMemory::GuardedMemory(int32_t num_layers, int32_t num_local_slots)
    : num_layers_(num_layers), num_local_slots_(num_local_slots) {
  region = {.num_tensors = static_cast<size_t>(num_layers) * kShapes.size()};
  void* const memory = mmap(nullptr, region.num_tensors * kTensorBytes, PROT_READ,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  region.begin = static_cast<std::byte*>(memory);
  struct sigaction action = {};
  action.sa_sigaction = &OnWrite;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
}

GuardedMemory::~GuardedMemory() { munmap(region.begin, region.num_tensors * kTensorBytes); }

std::vector<ExpertTensorView> GuardedMemory::Tensors() {
  std::vector<ExpertTensorView> tensors;
  for (int32_t layer = 0; layer < num_layers_; ++layer) {
    for (const Shape& shape : kShapes) {
      ExpertTensorView& view = tensors.emplace_back();
      view.name = absl::StrCat("layers.", layer, ".", shape.name);
      view.layer = layer;
      view.role = shape.role;
      view.base = TensorAt(tensors.size() - 1);
      view.num_rows = num_local_slots_;
      view.row_bytes = shape.row_bytes;
      view.row_stride = shape.row_stride;
    }
  }
  return tensors;
}

void GuardedMemory::Visit(const PlacementView& placement, int64_t step,
                          const std::function<void(std::byte*, std::byte)>& visitor) const {
  for (int32_t layer = 0; layer < num_layers_; ++layer) {
    for (size_t tensor = 0; tensor < kShapes.size(); ++tensor) {
      std::byte* row = TensorAt(static_cast<size_t>(layer) * kShapes.size() + tensor);
      for (int32_t slot = 0; slot < num_local_slots_; ++slot) {
        const int32_t index = layer * placement.num_slots + placement.first_local_slot + slot;
        const int32_t expert = placement.physical_to_logical_map[static_cast<size_t>(index)];
        for (int64_t i = 0; i < kShapes[tensor].row_stride; ++i) {
          const bool is_gap = i >= kShapes[tensor].row_bytes;
          visitor(row + i, is_gap ? std::byte{0} : Content(layer, expert, tensor, step, i));
        }
        row += kShapes[tensor].row_stride;
      }
    }
  }
}

void GuardedMemory::Train(const PlacementView& placement, int64_t step) {
  Protect(PROT_READ | PROT_WRITE);
  Visit(placement, step, [](std::byte* at, std::byte value) { *at = value; });
  Protect(PROT_READ);
  region.num_opened = 0;
  region.on_second = nullptr;
}

int64_t GuardedMemory::CountWrong(const PlacementView& placement, int64_t step) const {
  int64_t wrong = 0;
  Visit(placement, step,
        [&](const std::byte* at, std::byte value) { wrong += *at != value ? 1 : 0; });
  return wrong;
}

void GuardedMemory::OpenForCommit(void (*on_second)()) {
  region.on_second = on_second;
  if (on_second == nullptr) Protect(PROT_READ | PROT_WRITE);
}

}  // namespace eplb
