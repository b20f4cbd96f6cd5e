// The symbols of libnccl that cuda/nccl_library.h names, over the fake's communicators.
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nccl.h>

#include "tests/support/fake_nccl/communicator.h"
#include "tests/support/fake_nccl/fake_nccl.h"
#include "tests/support/fake_nccl/faults.h"
#include "tests/support/fake_nccl/group_log.h"
#include "tests/support/fake_nccl/memory_use.h"
#include "tests/support/fake_nccl/violations.h"

using eplb::fake_nccl::Operation;
using eplb::fake_nccl::Outcome;

struct ncclComm {
  explicit ncclComm(eplb::fake_nccl::CommunicatorOptions options)
      : communicator(std::move(options)) {}
  eplb::fake_nccl::Communicator communicator;
  std::optional<std::thread::id> caller;  // guarded by the mutex of Communicators
  int32_t depth = 0;                      // depth of its calls
};

namespace {

// Those that were begun and not aborted.
struct Communicators {
  std::mutex mutex;
  std::map<ncclComm_t, std::shared_ptr<ncclComm>> all;  // guarded by mutex
};

Communicators& TheCommunicators() {
  static auto& communicators = *new Communicators();
  return communicators;
}

// A call on a communicator, which only one thread may be in.
class Entry {
 public:
  explicit Entry(ncclComm_t communicator) {
    const std::lock_guard<std::mutex> lock(TheCommunicators().mutex);
    const auto found = TheCommunicators().all.find(communicator);
    if (found == TheCommunicators().all.end()) {
      eplb::fake_nccl::Blame("a call on a communicator that is no more");
      return;
    }
    communicator_ = found->second;
    const std::thread::id self = std::this_thread::get_id();
    if (communicator_->caller.value_or(self) != self) {
      eplb::fake_nccl::Blame("two threads call on a communicator at once");
    }
    communicator_->caller = self;
    ++communicator_->depth;
  }
  ~Entry() {
    if (communicator_ == nullptr) return;
    const std::lock_guard<std::mutex> lock(TheCommunicators().mutex);
    if (--communicator_->depth == 0) communicator_->caller.reset();
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  bool ok() const { return communicator_ != nullptr; }
  eplb::fake_nccl::Communicator& operator*() const { return communicator_->communicator; }
  eplb::fake_nccl::Communicator* operator->() const { return &communicator_->communicator; }
  // Ends it, with this entry; no later call finds it.
  void End() {
    {
      const std::lock_guard<std::mutex> lock(TheCommunicators().mutex);
      TheCommunicators().all.erase(communicator_.get());
    }
    eplb::fake_nccl::DeregisterAll(&communicator_->communicator);
    communicator_.reset();
  }

 private:
  std::shared_ptr<ncclComm> communicator_;
};

constexpr unsigned int kMagic = 0xcafebeef;
constexpr size_t kIdBytes = 16;
constexpr int kDefaultChannels = 32;

struct Asked {
  std::vector<Operation> operations;
  cudaStream_t stream = nullptr;
};
struct Group {
  int32_t depth = 0;
  std::map<ncclComm_t, Asked> asked;
  ncclResult_t result = ncclSuccess;  // the first refusal
};
thread_local Group group;
thread_local std::string last_error;
thread_local std::string log_copy;
thread_local std::string violations_copy;

ncclResult_t Told(Outcome outcome) {
  if (outcome.result != ncclSuccess && outcome.result != ncclInProgress) {
    last_error = std::move(outcome.text);
  }
  return outcome.result;
}

ncclResult_t Refuse(const std::string& text) { return Told({ncclInvalidArgument, text}); }

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string Number(int value) {
  return value == NCCL_CONFIG_UNDEF_INT ? "-" : std::to_string(value);
}

// Reads a configuration like NCCL: no more than the caller's size, the rest undefined.
ncclConfig_t ReadConfig(const ncclConfig_t* config) {
  ncclConfig_t own = NCCL_CONFIG_INITIALIZER;
  std::memcpy(&own, config, std::min(config->size, sizeof(own)));
  return own;
}

// "" for a configuration that will do.
std::string WhyNot(const ncclConfig_t& config) {
  const auto outside = [](int value, int low, int high) {
    return value != NCCL_CONFIG_UNDEF_INT && (value < low || value > high);
  };
  if (config.magic != kMagic) return "the configuration was not initialised";
  if (config.blocking != 0) return "the fake has only communicators that do not block";
  if (outside(config.maxCTAs, 1, 64)) return "maxCTAs out of range";
  if (outside(config.nChannelsPerNetPeer, 1, 64)) return "nChannelsPerNetPeer out of range";
  if (outside(config.trafficClass, 0, 255)) return "trafficClass out of range";
  if (outside(config.splitShare, 0, 1)) return "splitShare is 0 or 1";
  if (outside(config.shrinkShare, 0, 1)) return "shrinkShare is 0 or 1";
  return "";
}

void LogBegin(int rank, int num_ranks, const ncclConfig_t& config) {
  eplb::fake_nccl::AddToLog(
      rank, "begin ranks=" + std::to_string(num_ranks) + " maxCTAs=" + Number(config.maxCTAs) +
                " nChannelsPerNetPeer=" + Number(config.nChannelsPerNetPeer) + " trafficClass=" +
                Number(config.trafficClass) + " splitShare=" + Number(config.splitShare) +
                " shrinkShare=" + Number(config.shrinkShare) +
                " name=" + (config.commName != nullptr ? config.commName : "-") +
                " version=" + std::to_string(config.version));
}

ncclResult_t Submit() {
  Group ended = std::exchange(group, {});
  ncclResult_t result = ended.result;
  for (auto& [communicator, asked] : ended.asked) {
    if (result != ncclSuccess && result != ncclInProgress) break;
    const Entry entry(communicator);
    if (!entry.ok()) return ncclInvalidArgument;
    result = Told(entry->Submit(std::move(asked.operations), asked.stream));
  }
  return result;
}

ncclResult_t Add(const Operation& operation, ncclDataType_t type, ncclComm_t communicator,
                 cudaStream_t stream) {
  std::string why_not;
  const Entry entry(communicator);
  if (!entry.ok()) {
    why_not = "no communicator";
  } else if (type != ncclUint8) {
    why_not = "the fake moves bytes only";
  } else if (const auto& address = entry->address(); operation.peer < 0 ||
                                                     operation.peer >= address.num_ranks ||
                                                     operation.peer == address.rank) {
    why_not = "the fake has no way to rank " + std::to_string(operation.peer);
  } else if (operation.bytes == 0 || (operation.source == nullptr && operation.target == nullptr)) {
    why_not = "nothing to move";
  }
  if (!why_not.empty()) {
    if (group.depth > 0) group.result = ncclInvalidArgument;
    return Refuse(why_not);
  }
  Asked& asked = group.asked[communicator];
  asked.operations.push_back(operation);
  asked.stream = stream;
  return group.depth > 0 ? ncclSuccess : Submit();
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  std::string error;
  if (!eplb::fake_nccl::CurrentFaults(&error)) {
    std::fprintf(stderr, "EPLB_FAKE_NCCL_FAULTS: %s\n", error.c_str());
    return ncclInvalidArgument;
  }
  const std::string pretended = Variable("EPLB_FAKE_NCCL_VERSION");
  *version = pretended.empty() ? NCCL_VERSION_CODE : std::atoi(pretended.c_str());
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::array<unsigned char, kIdBytes> random{};
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return Told({ncclSystemError, "no random bytes"});
  }
  *id = {};
  for (size_t i = 0; i < random.size(); ++i) {
    (void)std::snprintf(id->internal + 2 * i, 3, "%02x", random[i]);
  }
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  static constexpr std::array<const char*, ncclNumResults> kTexts = {
      "no error",
      "unhandled cuda error",
      "unhandled system error",
      "internal error",
      "invalid argument",
      "invalid usage",
      "remote process exited or there was a network error",
      "in progress"};
  return result >= 0 && result < ncclNumResults ? kTexts[result] : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t communicator) {
  if (communicator != nullptr) {
    if (const Entry entry(communicator); entry.ok()) Told(entry->state());
  }
  return last_error.c_str();
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int num_ranks, ncclUniqueId id,
                                    int rank, ncclConfig_t* config) {
  *communicator = nullptr;
  if (num_ranks < 1 || rank < 0 || rank >= num_ranks) return Refuse("rank out of range");
  const ncclConfig_t known = ReadConfig(config);
  if (const std::string why_not = WhyNot(known); !why_not.empty()) return Refuse(why_not);
  std::string error;
  auto faults = eplb::fake_nccl::CurrentFaults(&error);
  if (!faults) return Refuse(error);
  LogBegin(rank, num_ranks, known);
  eplb::fake_nccl::CommunicatorOptions options{
      .address = {.id = std::string(id.internal, strnlen(id.internal, 2 * kIdBytes)),
                  .rank = rank,
                  .num_ranks = num_ranks},
      .channels = known.maxCTAs == NCCL_CONFIG_UNDEF_INT ? kDefaultChannels : known.maxCTAs,
      .faults = *std::move(faults),
      .rules = Variable("EPLB_FAKE_NCCL_RULES") != "off",
      .device = std::nullopt};
  if (eplb::fake_nccl::Cuda() != nullptr) {
    options.device = eplb::fake_nccl::Cuda()->current_device();
  }
  const auto init_error = FaultOf(options.faults, rank, eplb::fake_nccl::FaultKind::kInitError);
  const auto made = std::make_shared<ncclComm>(std::move(options));
  *communicator = made.get();
  {
    const std::lock_guard<std::mutex> lock(TheCommunicators().mutex);
    TheCommunicators().all[made.get()] = made;
  }
  if (!init_error) return ncclInProgress;
  return Told({static_cast<ncclResult_t>(init_error->code), "an error that was asked for"});
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* result) {
  const Entry entry(communicator);
  if (!entry.ok()) return ncclInvalidArgument;
  *result = entry->Poll().result;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  Entry entry(communicator);
  if (!entry.ok()) return ncclInvalidArgument;
  if (Outcome fault = entry->OutcomeOf(eplb::fake_nccl::FaultKind::kAbortError);
      fault.result != ncclSuccess) {
    // It is left as it is, and so is its memory: no call can end it.
    eplb::fake_nccl::DeregisterAll(&*entry);
    return Told(std::move(fault));
  }
  std::this_thread::sleep_for(entry->AbortTime());
  const int32_t rank = entry->address().rank;
  entry.End();
  eplb::fake_nccl::AddToLog(rank, "aborted");
  return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void** address, size_t size) {
  std::string error;
  const auto faults = eplb::fake_nccl::CurrentFaults(&error);
  if (faults && FaultOf(*faults, 0, eplb::fake_nccl::FaultKind::kMemError)) {
    return Told({ncclUnhandledCudaError, "an error that was asked for"});
  }
  if (eplb::fake_nccl::Cuda() == nullptr) return Refuse("there is no device");
  const bool made = eplb::fake_nccl::Cuda()->allocate(address, size) == cudaSuccess;
  return made ? ncclSuccess : Told({ncclUnhandledCudaError, "out of memory"});
}

ncclResult_t ncclMemFree(void* address) {
  if (eplb::fake_nccl::Cuda() == nullptr) return Refuse("there is no device");
  return eplb::fake_nccl::Cuda()->free(address) == cudaSuccess ? ncclSuccess
                                                               : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(const ncclComm_t communicator, void* buffer, size_t size,
                              void** handle) {
  const Entry entry(communicator);
  if (!entry.ok()) return ncclInvalidArgument;
  if (Outcome fault = entry->OutcomeOf(eplb::fake_nccl::FaultKind::kRegisterError);
      fault.result != ncclSuccess) {
    return Told(std::move(fault));
  }
  const bool off = Variable("NCCL_LOCAL_REGISTER") == "0";
  *handle = off ? nullptr : eplb::fake_nccl::Register(&*entry, buffer, size);
  if (!off) eplb::fake_nccl::AddToLog(entry->address().rank, "registered");
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t communicator, void* handle) {
  const Entry entry(communicator);
  if (!entry.ok()) return ncclInvalidArgument;
  if (eplb::fake_nccl::Deregister(&*entry, handle)) return ncclSuccess;
  return Told({ncclInvalidUsage, "no such registration"});
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return Told({ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart"});
  return --group.depth > 0 ? ncclSuccess : Submit();
}

ncclResult_t ncclSend(const void* source, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return Add({.is_send = true,
              .peer = peer,
              .bytes = count,
              .source = static_cast<const std::byte*>(source)},
             type, communicator, stream);
}

ncclResult_t ncclRecv(void* target, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return Add({.peer = peer, .bytes = count, .target = static_cast<std::byte*>(target)}, type,
             communicator, stream);
}

const char* fakeNcclGetLog() {
  log_copy = eplb::fake_nccl::LogOfProcess();
  return log_copy.c_str();
}

void fakeNcclClearLog() { eplb::fake_nccl::ClearLog(); }

int fakeNcclSetFaults(const char* text) {
  std::string error;
  if (eplb::fake_nccl::SetFaults(text, &error)) return 0;
  std::fprintf(stderr, "fakeNcclSetFaults: %s\n", error.c_str());
  return -1;
}

const char* fakeNcclTakeViolations() {
  violations_copy = eplb::fake_nccl::TakeViolations();
  return violations_copy.c_str();
}

int fakeNcclNumCommunicators() {
  const std::lock_guard<std::mutex> lock(TheCommunicators().mutex);
  return static_cast<int>(TheCommunicators().all.size());
}

int64_t fakeNcclBytesPassed() { return eplb::fake_nccl::BytesPassed(); }
