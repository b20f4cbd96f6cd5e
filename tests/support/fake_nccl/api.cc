// The symbols of libnccl that cuda/nccl_library.h names, over the fake's communicators. Streams
// are ignored: a group runs at once, and memory is the host's.
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nccl.h>

#include "tests/support/fake_nccl/communicator.h"
#include "tests/support/fake_nccl/fake_nccl.h"
#include "tests/support/fake_nccl/faults.h"
#include "tests/support/fake_nccl/group_log.h"

using eplb::fake_nccl::Operation;
using eplb::fake_nccl::Outcome;

struct ncclComm {
  eplb::fake_nccl::Communicator communicator;
};

namespace {

constexpr unsigned int kMagic = 0xcafebeef;
constexpr size_t kIdBytes = 16;
constexpr int kDefaultChannels = 32;

struct Group {
  int32_t depth = 0;
  std::map<ncclComm_t, std::vector<Operation>> operations;
  ncclResult_t result = ncclSuccess;  // the first refusal
};
thread_local Group group;
thread_local std::string last_error;
thread_local std::string log_copy;

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

// As NCCL reads it: no more than the caller's size, the rest undefined.
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
  for (auto& [communicator, operations] : ended.operations) {
    if (result != ncclSuccess && result != ncclInProgress) break;
    result = Told(communicator->communicator.Submit(std::move(operations)));
  }
  return result;
}

ncclResult_t Add(const Operation& operation, ncclDataType_t type, ncclComm_t communicator) {
  std::string why_not;
  if (communicator == nullptr) {
    why_not = "no communicator";
  } else if (type != ncclUint8) {
    why_not = "the fake moves bytes only";
  } else if (const auto& address = communicator->communicator.address();
             operation.peer < 0 || operation.peer >= address.num_ranks ||
             operation.peer == address.rank) {
    why_not = "the fake has no way to rank " + std::to_string(operation.peer);
  } else if (operation.bytes == 0 || (operation.source == nullptr && operation.target == nullptr)) {
    why_not = "nothing to move";
  }
  if (!why_not.empty()) {
    if (group.depth > 0) group.result = ncclInvalidArgument;
    return Refuse(why_not);
  }
  group.operations[communicator].push_back(operation);
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
  if (communicator != nullptr) Told(communicator->communicator.state());
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
  *communicator = new ncclComm{
      .communicator = eplb::fake_nccl::Communicator(
          {.address = {.id = std::string(id.internal, strnlen(id.internal, 2 * kIdBytes)),
                       .rank = rank,
                       .num_ranks = num_ranks},
           .channels = known.maxCTAs == NCCL_CONFIG_UNDEF_INT ? kDefaultChannels : known.maxCTAs,
           .faults = *std::move(faults),
           .rules = Variable("EPLB_FAKE_NCCL_RULES") != "off"})};
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* result) {
  *result = communicator->communicator.state().result;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  delete communicator;
  return ncclSuccess;
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
                      ncclComm_t communicator, cudaStream_t /*stream*/) {
  return Add({.is_send = true,
              .peer = peer,
              .bytes = count,
              .source = static_cast<const std::byte*>(source)},
             type, communicator);
}

ncclResult_t ncclRecv(void* target, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t /*stream*/) {
  return Add(
      {.is_send = false, .peer = peer, .bytes = count, .target = static_cast<std::byte*>(target)},
      type, communicator);
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
