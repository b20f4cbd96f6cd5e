// Calls of NCCL that do not wait, and the settings of a communicator.
#include "cuda/nccl_communicator.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/runtime.h"

namespace eplb::cuda {
namespace {

static_assert(kNcclIdBytes == NCCL_UNIQUE_ID_BYTES && sizeof(ncclUniqueId) == kNcclIdBytes);

// Calls of a communicator that does not block return before their work is done.
bool Accepted(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

absl::StatusCode CodeOf(ncclResult_t result) {
  return result == ncclRemoteError || result == ncclSystemError ? absl::StatusCode::kUnavailable
                                                                : absl::StatusCode::kInternal;
}

// Returns a status of one line, although NCCL ends some of its texts with a newline.
absl::Status NcclStatus(const NcclLibrary& library, ncclResult_t result, ncclComm_t communicator,
                        std::string_view call) {
  const NcclLibrary::Functions& nccl = library.functions();
  std::string text = absl::StrCat(std::string(call), ": ", nccl.ncclGetErrorString(result), " (",
                                  static_cast<int>(result), ")");
  const char* last = nccl.ncclGetLastError(communicator);
  if (last != nullptr && *last != '\0') absl::StrAppend(&text, ": ", last);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return absl::Status(CodeOf(result), text);
}

// end: "send to" or "receive from".
absl::Status CheckPeer(int32_t peer, size_t bytes, const NcclOptions& options,
                       std::string_view end) {
  if (peer < 0 || peer >= options.num_ranks || peer == options.rank) {
    return InvalidInput("rank ", options.rank, " of ", options.num_ranks, " cannot ",
                        std::string(end), " rank ", peer);
  }
  if (bytes > 0) return absl::OkStatus();
  return InvalidInput(std::string(end), " rank ", peer, " of 0 bytes, a row has some");
}

constexpr int32_t kMaxChannels = 64;  // NCCL's MAXCHANNELS

// Work batches of a plan (one kernel): (4096 - 32) / 16 = 254. An operation on c channels takes c
// of them. Operations that do not fit start a second kernel after the first, and ranks that cut
// their groups at different operations can wait for each other for ever. One send and one receive
// always fit.
constexpr int32_t kPlanBatches = (4096 - 32) / 16;
static_assert(2 * kMaxChannels <= kPlanBatches);

// Returns the size of the structure in a version; fields are only added at the end.
size_t SizeIn(int version) {
  if (version < 22602) return offsetof(ncclConfig_t, trafficClass);
  if (version < 22700) return offsetof(ncclConfig_t, commName);
  if (version < 22800) return offsetof(ncclConfig_t, nChannelsPerNetPeer);
  return sizeof(ncclConfig_t);
}

}  // namespace

// The impl keeps one address, because NCCL keeps that of the name, and the thread that connects
// writes `communicator` a second time.
struct NcclCommunicator::Impl {
  const NcclLibrary& library;
  NcclOptions options;
  ncclComm_t communicator = nullptr;
  bool ready = false;    // Poll returned true since the last call
  bool has_run = false;  // a group was begun
  std::vector<void*> registrations = {};
  absl::Status failure = absl::OkStatus();  // the first error, which stays

  const NcclLibrary::Functions& nccl() const { return library.functions(); }
  absl::Status Fail(ncclResult_t result, std::string_view call) {
    ready = false;
    failure = NcclStatus(library, result, communicator, call);
    return failure;
  }
};

absl::StatusOr<NcclId> MakeNcclId(const NcclLibrary& library) {
  ncclUniqueId drawn;
  if (const ncclResult_t result = library.functions().ncclGetUniqueId(&drawn);
      result != ncclSuccess) {
    return Internal(NcclStatus(library, result, nullptr, "ncclGetUniqueId").message());
  }
  NcclId id;
  std::memcpy(id.data(), drawn.internal, id.size());
  return id;
}

NcclCommunicator::NcclCommunicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NcclCommunicator::~NcclCommunicator() { (void)Abort(); }

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Begin(
    const NcclLibrary& library, const NcclId& id, const NcclOptions& options) {
  auto communicator = std::unique_ptr<NcclCommunicator>(new NcclCommunicator(
      std::unique_ptr<Impl>(new Impl{.library = library, .options = options})));
  Impl& impl = *communicator->impl_;
  ncclUniqueId unique;
  std::memcpy(unique.internal, id.data(), id.size());
  ncclConfig_t config = MakeNcclConfig(impl.options, library.version());
  const ncclResult_t result = impl.nccl().ncclCommInitRankConfig(
      &impl.communicator, options.num_ranks, unique, options.rank, &config);
  if (!Accepted(result)) return impl.Fail(result, "ncclCommInitRankConfig");
  return communicator;
}

absl::StatusOr<bool> NcclCommunicator::Poll() {
  EPLB_RETURN_IF_ERROR(impl_->failure);
  // Asks after an accepted call as well, because only this reports errors while the bytes move.
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = impl_->nccl().ncclCommGetAsyncError(impl_->communicator, &state);
  if (asked != ncclSuccess) return impl_->Fail(asked, "ncclCommGetAsyncError");
  if (!Accepted(state)) return impl_->Fail(state, "NCCL");
  impl_->ready = state == ncclSuccess;
  return impl_->ready;
}

absl::Status NcclCommunicator::SendReceive(const std::optional<NcclSend>& send,
                                           const std::optional<NcclReceive>& receive,
                                           void* stream) {
  const NcclOptions& options = impl_->options;
  if (send) EPLB_RETURN_IF_ERROR(CheckPeer(send->to, send->bytes.size(), options, "send to"));
  if (receive) {
    EPLB_RETURN_IF_ERROR(CheckPeer(receive->from, receive->bytes.size(), options, "receive from"));
  }
  if (!impl_->failure.ok()) {
    return FailedPrecondition("the communicator has failed: ", impl_->failure.message());
  }
  if (!impl_->ready) return FailedPrecondition("the call before is still under way");
  if (!send && !receive) return absl::OkStatus();
  const NcclLibrary::Functions& nccl = impl_->nccl();
  auto* const on_stream = static_cast<cudaStream_t>(stream);
  impl_->ready = false;
  impl_->has_run = true;
  ncclResult_t result = nccl.ncclGroupStart();
  if (!Accepted(result)) return impl_->Fail(result, "ncclGroupStart");
  std::string_view call = "ncclSend";
  if (send) {
    result = nccl.ncclSend(send->bytes.data(), send->bytes.size(), ncclUint8, send->to,
                           impl_->communicator, on_stream);
  }
  if (receive && Accepted(result)) {
    call = "ncclRecv";
    result = nccl.ncclRecv(receive->bytes.data(), receive->bytes.size(), ncclUint8, receive->from,
                           impl_->communicator, on_stream);
  }
  // Ends the group after an error as well, or the framework's next call on this thread would join
  // it.
  const ncclResult_t ended = nccl.ncclGroupEnd();
  if (!Accepted(result)) return impl_->Fail(result, call);
  return Accepted(ended) ? absl::OkStatus() : impl_->Fail(ended, "ncclGroupEnd");
}

absl::Status NcclCommunicator::Register(std::span<std::byte> memory) {
  if (!impl_->ready) return FailedPrecondition("the call before is still under way");
  if (impl_->nccl().ncclCommRegister == nullptr) {
    return FailedPrecondition("NCCL ", impl_->library.version_text(), " cannot register memory");
  }
  void* handle = nullptr;
  const ncclResult_t result =
      impl_->nccl().ncclCommRegister(impl_->communicator, memory.data(), memory.size(), &handle);
  if (result != ncclSuccess) {
    return NcclStatus(impl_->library, result, impl_->communicator, "ncclCommRegister");
  }
  if (handle == nullptr) {
    return FailedPrecondition("NCCL registers no memory here (NCCL_LOCAL_REGISTER=0)");
  }
  impl_->registrations.push_back(handle);
  return absl::OkStatus();
}

void NcclCommunicator::Deregister() {
  for (void* const handle : impl_->registrations) {
    (void)impl_->nccl().ncclCommDeregister(impl_->communicator, handle);
  }
  impl_->registrations.clear();
}

absl::Status NcclCommunicator::Abort() {
  if (impl_->communicator == nullptr) return absl::OkStatus();
  // This ends registrations as well. Ending them first could wait for a peer that does not answer.
  const ncclResult_t result = impl_->nccl().ncclCommAbort(impl_->communicator);
  absl::Status status;
  if (result != ncclSuccess && impl_->has_run) {
    status = Internal(NcclStatus(impl_->library, result, nullptr, "ncclCommAbort").message());
  }
  impl_->communicator = nullptr;
  impl_->ready = false;
  if (impl_->failure.ok()) impl_->failure = FailedPrecondition("aborted");
  return status;
}

absl::StatusOr<RowBuffer> AllocateByNccl(const NcclLibrary& library, int32_t device,
                                         int64_t num_bytes) {
  EPLB_RETURN_IF_ERROR(CheckBufferSize(num_bytes));
  const NcclLibrary::Functions& nccl = library.functions();
  if (nccl.ncclMemAlloc == nullptr) {
    return FailedPrecondition("NCCL ", library.version_text(), " allocates no memory");
  }
  EPLB_ASSIGN_OR_RETURN(const DeviceGuard guard, DeviceGuard::Make(device));
  void* memory = nullptr;
  const ncclResult_t result = nccl.ncclMemAlloc(&memory, static_cast<size_t>(num_bytes));
  if (result != ncclSuccess) return NcclStatus(library, result, nullptr, "ncclMemAlloc");
  const auto free = [release = nccl.ncclMemFree, device](std::byte* bytes) {
    const auto on_device = DeviceGuard::Make(device);
    (void)release(bytes);
  };
  auto* const bytes = static_cast<std::byte*>(memory);
  return RowBuffer{.owner = {bytes, free}, .bytes = {bytes, static_cast<size_t>(num_bytes)}};
}

ncclConfig_t MakeNcclConfig(const NcclOptions& options, int version) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.size = SizeIn(version);
  config.version = static_cast<unsigned int>(std::min(version, NCCL_VERSION_CODE));
  config.blocking = 0;
  config.maxCTAs = options.max_ctas;
  config.splitShare = 0;
  if (version >= 22602 && options.traffic_class >= 0) config.trafficClass = options.traffic_class;
  if (version >= 22700) {
    config.commName = options.name.c_str();
    config.shrinkShare = 0;
  }
  if (version >= 22800) config.nChannelsPerNetPeer = options.channels_per_net_peer;
  return config;
}

}  // namespace eplb::cuda
