#include "cuda/peer_arena.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include <cuda_runtime_api.h>

#include "base/errors.h"
#include "base/hex.h"
#include "base/status_macros.h"
#include "cuda/runtime.h"
#include "cuda/virtual_memory.h"

namespace eplb::cuda {
namespace {

constexpr char kFormat[] = "cuda1";  // the text: format process device bytes address handle
constexpr char kNoHandle[] = "-";

// Tells this process from all others: a handle cannot be opened where it was made.
const std::string& ProcessName() {
  static const std::string name = [] {
    std::random_device random;
    return absl::StrCat(getpid(), ".", absl::Hex(random()), absl::Hex(random()));
  }();
  return name;
}

struct Offered {
  std::string process;
  int32_t device = 0;
  int64_t num_bytes = 0;
  uint64_t address = 0;
  std::optional<cudaIpcMemHandle_t> handle;
};

std::string Encode(const Offered& offered) {
  std::string handle = kNoHandle;
  if (offered.handle.has_value()) {
    handle = absl::BytesToHexString(
        {reinterpret_cast<const char*>(&*offered.handle), sizeof(*offered.handle)});
  }
  return absl::StrCat(kFormat, " ", offered.process, " ", offered.device, " ", offered.num_bytes,
                      " ", offered.address, " ", handle);
}

absl::StatusOr<Offered> Decode(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  Offered offered;
  if (words.size() != 6 || words[0] != kFormat || !absl::SimpleAtoi(words[2], &offered.device) ||
      !absl::SimpleAtoi(words[3], &offered.num_bytes) ||
      !absl::SimpleAtoi(words[4], &offered.address)) {
    return FailedPrecondition("it has no staging on a GPU (or another version)");
  }
  offered.process = words[1];
  if (words[5] != kNoHandle) {
    const std::optional<std::string> bytes = BytesFromHex(words[5]);
    cudaIpcMemHandle_t handle;
    if (!bytes || bytes->size() != sizeof(handle)) {
      return FailedPrecondition("its IPC handle is of another size");
    }
    std::memcpy(&handle, bytes->data(), sizeof(handle));
    offered.handle = handle;
  }
  return offered;
}

using OpenedMemory = std::unique_ptr<void, HandleDeleter<void*, cudaIpcCloseMemHandle>>;

// A handle is of the whole blocks that an allocation lies in, and smaller ones share theirs: a peer
// would see the neighbours.
constexpr int64_t kBlockBytes = int64_t{2} << 20;
int64_t WholeBlocks(int64_t num_bytes) {
  return std::max<int64_t>((num_bytes + kBlockBytes - 1) / kBlockBytes, 1) * kBlockBytes;
}

// Lets `device` write into memory of `other`, of this process.
absl::Status Reach(int32_t device, int32_t other) {
  if (device == other) return absl::OkStatus();
  int can = 0;
  EPLB_RETURN_IF_ERROR(
      ToStatus(cudaDeviceCanAccessPeer(&can, device, other), "cudaDeviceCanAccessPeer"));
  if (can == 0) {
    return FailedPrecondition("device ", device, " does not reach the memory of device ", other);
  }
  const cudaError_t error = cudaDeviceEnablePeerAccess(other, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
    return absl::OkStatus();
  }
  return ToStatus(error, "cudaDeviceEnablePeerAccess");
}

}  // namespace

struct PeerArena::Impl {
  explicit Impl(int32_t of_device) : device(of_device) {}
  ~Impl() {
    absl::StatusOr<DeviceGuard> guard = DeviceGuard::Make(device);
    if (guard.ok()) closing.emplace(*std::move(guard));
    if (descriptor >= 0) (void)close(descriptor);
  }

  const int32_t device;
  std::optional<DeviceGuard> closing;  // while what follows is freed
  std::optional<VirtualMemory> virtual_memory;
  DeviceMemory plain;
  OpenedMemory opened;
  int descriptor = -1;
  std::span<std::byte> bytes;
  Offered offered;
};

PeerArena::PeerArena(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PeerArena::PeerArena(PeerArena&&) noexcept = default;
PeerArena& PeerArena::operator=(PeerArena&&) noexcept = default;
PeerArena::~PeerArena() = default;

std::span<std::byte> PeerArena::bytes() const { return impl_->bytes; }

bool PeerArena::is_registrable() const {
  return impl_->virtual_memory.has_value() && impl_->virtual_memory->network_reaches();
}

PeerArenaOffer PeerArena::offer() const {
  return {.text = Encode(impl_->offered), .descriptor = impl_->descriptor};
}

absl::StatusOr<PeerArena> PeerArena::Make(int32_t device, int64_t num_bytes, PeerArenaKind kind) {
  EPLB_ASSIGN_OR_RETURN(const DeviceGuard guard, DeviceGuard::Make(device));
  auto impl = std::make_unique<Impl>(device);
  if (kind == PeerArenaKind::kBest) {
    absl::StatusOr<VirtualMemory> memory = VirtualMemory::Make(device, num_bytes);
    if (absl::IsResourceExhausted(memory.status())) return memory.status();
    const absl::StatusOr<int> descriptor = memory.ok() ? memory->Export() : memory.status();
    if (descriptor.ok()) {
      impl->descriptor = *descriptor;
      impl->virtual_memory = *std::move(memory);
      impl->bytes = impl->virtual_memory->bytes();
    }
  }
  if (!impl->virtual_memory.has_value()) {
    EPLB_ASSIGN_OR_RETURN(impl->plain, MakeDeviceMemory(WholeBlocks(num_bytes)));
    impl->bytes = {static_cast<std::byte*>(impl->plain.get()), static_cast<size_t>(num_bytes)};
    cudaIpcMemHandle_t handle;
    EPLB_RETURN_IF_ERROR(
        ToStatus(cudaIpcGetMemHandle(&handle, impl->plain.get()), "cudaIpcGetMemHandle"));
    impl->offered.handle = handle;
  }
  if (!impl->bytes.empty()) {
    EPLB_RETURN_IF_ERROR(
        ToStatus(cudaMemset(impl->bytes.data(), 0, impl->bytes.size()), "cudaMemset"));
    EPLB_RETURN_IF_ERROR(ToStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
  }
  impl->offered.process = ProcessName();
  impl->offered.device = device;
  impl->offered.num_bytes = num_bytes;
  impl->offered.address = reinterpret_cast<uint64_t>(impl->bytes.data());
  return PeerArena(std::move(impl));
}

absl::StatusOr<PeerArena> PeerArena::Map(int32_t device, const std::string& text, int descriptor,
                                         int64_t num_bytes) {
  EPLB_ASSIGN_OR_RETURN(const DeviceGuard guard, DeviceGuard::Make(device));
  EPLB_ASSIGN_OR_RETURN(const Offered offered, Decode(text));
  if (offered.num_bytes != num_bytes) {
    return FailedPrecondition("its staging has ", offered.num_bytes, " bytes, it announced ",
                              num_bytes);
  }
  const auto size = static_cast<size_t>(num_bytes);
  auto impl = std::make_unique<Impl>(device);
  const bool own_process = offered.process == ProcessName();
  if (own_process && (offered.device == device || offered.handle.has_value())) {
    EPLB_RETURN_IF_ERROR(Reach(device, offered.device));
    // NOLINTNEXTLINE(performance-no-int-to-ptr): it came as text
    impl->bytes = {reinterpret_cast<std::byte*>(offered.address), size};
  } else if (offered.handle.has_value()) {
    void* opened = nullptr;
    EPLB_RETURN_IF_ERROR(
        ToStatus(cudaIpcOpenMemHandle(&opened, *offered.handle, cudaIpcMemLazyEnablePeerAccess),
                 "cudaIpcOpenMemHandle"));
    impl->opened.reset(opened);
    impl->bytes = {static_cast<std::byte*>(opened), size};
  } else {
    EPLB_ASSIGN_OR_RETURN(VirtualMemory memory,
                          VirtualMemory::Import(device, descriptor, num_bytes));
    impl->virtual_memory = std::move(memory);
    impl->bytes = impl->virtual_memory->bytes();
  }
  return PeerArena(std::move(impl));
}

}  // namespace eplb::cuda
