#include "tests/support/fake_nccl/communicator.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <utility>

#include "tests/support/fake_nccl/group_log.h"
#include "tests/support/fake_nccl/memory_use.h"
#include "tests/support/fake_nccl/violations.h"

namespace eplb::fake_nccl {
namespace {

constexpr int kForEver = -1;
constexpr uint32_t kMostPolls = 4;  // before a launch
constexpr int kPoison = 0xDB;       // content of memory that is received into and not written yet

std::string Describe(const std::vector<Operation>& operations, int64_t group, size_t num_plans) {
  std::string text = "group=" + std::to_string(group) + " plans=" + std::to_string(num_plans);
  for (const Operation& operation : operations) {
    text += std::string(operation.is_send ? " send=" : " receive=") +
            std::to_string(operation.peer) + ":" + std::to_string(operation.bytes);
  }
  return text;
}

std::string WhyNot(const std::vector<Operation>& operations) {
  const auto num_sends = std::ranges::count_if(operations, &Operation::is_send);
  if (num_sends > 1) return "two sends in a group";
  return static_cast<ptrdiff_t>(operations.size()) - num_sends > 1 ? "two receives in a group" : "";
}

}  // namespace

Communicator::Communicator(CommunicatorOptions options)
    : options_(std::move(options)),
      random_(static_cast<uint32_t>(options_.address.rank) * 7919 + 1) {
  std::array<int, 2> ends{-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    state_ = {ncclSystemError, "no pipe"};
    return;
  }
  stop_reader_ = Descriptor(ends[0]);
  stop_writer_ = Descriptor(ends[1]);
  thread_ = std::thread([this] { Run(); });
}

Communicator::~Communicator() {
  {
    const std::lock_guard<std::mutex> lock(intake_->mutex);
    intake_->stopped = true;
  }
  intake_->changed.notify_all();
  stop_writer_ = Descriptor();  // whoever polls the other end sees it
  if (thread_.joinable()) thread_.join();
}

bool Communicator::stopped() const { return intake_->stopped; }

Outcome Communicator::state() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_;
}

Outcome Communicator::OutcomeOf(FaultKind kind) const {
  const auto fault = FaultOf(options_.faults, options_.address.rank, kind);
  if (!fault) return {};
  return {static_cast<ncclResult_t>(fault->code), "an error that was asked for"};
}

std::chrono::milliseconds Communicator::AbortTime() const {
  const auto slow = FaultOf(options_.faults, options_.address.rank, FaultKind::kSlowAbort);
  return std::chrono::milliseconds(slow ? slow->ms : 0);
}

void Communicator::SetState(Outcome outcome) {
  const std::lock_guard<std::mutex> lock(mutex_);
  state_ = std::move(outcome);
}

std::string Communicator::UseDevice(std::vector<Operation>& operations, cudaStream_t stream) const {
  const int device = *options_.device;
  if (Cuda()->device_of_stream(stream) != device) {
    return "a stream that is not one of device " + std::to_string(device);
  }
  for (Operation& operation : operations) {
    const void* const address = operation.is_send ? operation.source : operation.target;
    std::byte* const view = Cuda()->view(address, operation.bytes, device);
    if (view == nullptr) return "memory that is not of device " + std::to_string(device);
    operation.is_registered = IsRegistered(this, address, operation.bytes);
    if (operation.is_send) {
      operation.source = view;
      operation.hash = HashOf(view, operation.bytes);
    } else {
      operation.target = view;
      std::memset(view, kPoison, operation.bytes);
    }
  }
  return "";
}

Outcome Communicator::Submit(std::vector<Operation> operations, cudaStream_t stream) {
  std::string why_not = options_.rules ? WhyNot(operations) : "";
  if (state().result == ncclInProgress) why_not = "a group before the end of the call before";
  if (!why_not.empty()) {
    AddToLog(options_.address.rank, "refused " + why_not);
    return {ncclInvalidUsage, why_not};
  }
  auto launch = std::make_shared<Launch>();
  if (options_.device.has_value()) {
    for (const Operation& operation : operations) {
      const void* const address = operation.is_send ? operation.source : operation.target;
      AddUse(address, operation.bytes,
             [launch, intake = intake_] { return launch->over.load() || intake->stopped.load(); });
    }
    if (why_not = UseDevice(operations, stream); !why_not.empty()) {
      launch->over = true;
      Blame("rank " + std::to_string(options_.address.rank) + " gave " + why_not);
      return {ncclInvalidArgument, why_not};
    }
  }
  launch->operations = std::move(operations);
  launch->stream = stream;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_.result != ncclSuccess) return state_;
  state_ = {ncclInProgress, ""};
  if (options_.device.has_value()) {
    submitted_ = std::move(launch);
    polls_left_ = static_cast<uint32_t>(random_() % kMostPolls);
    return state_;
  }
  const std::lock_guard<std::mutex> intake_lock(intake_->mutex);
  intake_->groups.push_back(std::move(launch));
  intake_->changed.notify_all();
  return state_;
}

Outcome Communicator::Poll() {
  std::shared_ptr<Launch> launch;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (submitted_ == nullptr || state_.result != ncclInProgress) return state_;
    if (polls_left_-- > 0) return state_;
    launch = std::exchange(submitted_, nullptr);
  }
  PutOnStream(launch);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_.result == ncclInProgress) state_ = {};
  return state_;
}

void Communicator::PutOnStream(const std::shared_ptr<Launch>& launch) {
  Cuda()->enqueue(launch->stream, [launch, intake = intake_] {
    if (launch->over || intake->stopped) return true;
    if (launch->begun.exchange(true)) return false;
    const std::lock_guard<std::mutex> lock(intake->mutex);
    intake->groups.push_back(launch);
    intake->changed.notify_all();
    return false;
  });
}

std::shared_ptr<Launch> Communicator::NextGroup() {
  std::unique_lock<std::mutex> lock(intake_->mutex);
  intake_->changed.wait(lock, [this] { return intake_->stopped || !intake_->groups.empty(); });
  if (intake_->stopped) return nullptr;
  std::shared_ptr<Launch> next = std::move(intake_->groups.front());
  intake_->groups.pop_front();
  return next;
}

void Communicator::MeetInitFaults() {
  const int32_t rank = options_.address.rank;
  if (FaultOf(options_.faults, rank, FaultKind::kInitHang)) Wait(kForEver, nullptr);
  const auto fault = FaultOf(options_.faults, rank, FaultKind::kInitAsyncError);
  if (fault) SetState({static_cast<ncclResult_t>(fault->code), "an error that was asked for"});
}

void Communicator::Run() {
  MeetInitFaults();
  if (stopped() || state().result != ncclInProgress) return;
  std::string error;
  std::vector<Descriptor> sockets = ConnectMesh(options_.address, stop_reader_.get(), &error);
  if (sockets.empty()) {
    if (!error.empty()) SetState({ncclSystemError, error});
    return;
  }
  for (size_t peer = 0; peer < sockets.size(); ++peer) {
    links_.push_back(sockets[peer].open()
                         ? std::make_unique<Link>(std::move(sockets[peer]), options_.address.rank,
                                                  static_cast<int32_t>(peer))
                         : nullptr);
  }
  SetState({});
  while (const std::shared_ptr<Launch> group = NextGroup()) {
    Outcome outcome = RunGroup(group->operations);
    if (outcome.result != ncclSuccess) {
      SetState(std::move(outcome));
      return;  // the connections stay: peers see an end only at the abort
    }
    CountPasses(group->operations);
    group->over = true;
    if (!options_.device.has_value()) SetState({});
  }
}

std::optional<Outcome> Communicator::MeetFaults(bool* corrupt) {
  for (const Fault& fault : FaultsOf(options_.faults, options_.address.rank, num_groups_ - 1)) {
    switch (fault.kind) {
      case FaultKind::kDelay:
        Wait(fault.ms, nullptr);
        break;
      case FaultKind::kAsyncError:
        return Outcome{static_cast<ncclResult_t>(fault.code), "an error that was asked for"};
      case FaultKind::kDie:
        (void)raise(SIGKILL);
        break;
      case FaultKind::kCorrupt:
        *corrupt = true;
        break;
      case FaultKind::kHang:
        Wait(kForEver, nullptr);
        break;
      case FaultKind::kSlowAbort:
      case FaultKind::kAbortError:
      case FaultKind::kInitError:
      case FaultKind::kInitAsyncError:
      case FaultKind::kInitHang:
      case FaultKind::kRegisterError:
      case FaultKind::kMemError:
        break;
    }
  }
  if (stopped()) return Outcome{ncclInProgress, ""};
  return std::nullopt;
}

Outcome Communicator::RunGroup(const std::vector<Operation>& operations) {
  const std::vector<std::vector<size_t>> plans =
      CutIntoPlans(operations, {.rank = options_.address.rank,
                                .num_ranks = options_.address.num_ranks,
                                .channels = options_.channels});
  AddToLog(options_.address.rank, Describe(operations, num_groups_++, plans.size()));
  bool corrupt = false;
  if (std::optional<Outcome> instead = MeetFaults(&corrupt)) return *std::move(instead);
  for (const std::unique_ptr<Link>& link : links_) {
    if (link != nullptr) link->BeginGroup(operations);
  }
  for (const std::vector<size_t>& plan : plans) {
    Outcome outcome = RunPlan(operations, plan);
    if (outcome.result != ncclSuccess) return outcome;
  }
  const auto received =
      std::ranges::find_if(operations, [](const Operation& one) { return !one.is_send; });
  if (corrupt && received != operations.end()) received->target[0] ^= std::byte{1};
  return {};
}

Outcome Communicator::RunPlan(const std::vector<Operation>& operations,
                              const std::vector<size_t>& plan) {
  for (const size_t i : plan) {
    links_[static_cast<size_t>(operations[i].peer)]->Post(operations[i]);
  }
  std::vector<Link*> busy;
  for (const std::unique_ptr<Link>& link : links_) {
    if (link != nullptr) busy.push_back(link.get());
  }
  for (;;) {
    for (Link* const link : busy) {
      Outcome outcome = link->idle() ? Outcome() : link->Progress();
      if (outcome.result != ncclSuccess) return outcome;
    }
    std::erase_if(busy, [](const Link* link) { return link->idle(); });
    if (busy.empty()) return {};
    Wait(kForEver, &busy);
    if (stopped()) return {ncclInProgress, ""};
  }
}

void Communicator::Wait(int timeout_ms, std::vector<Link*>* links) {
  std::vector<pollfd> ready = {{.fd = stop_reader_.get(), .events = POLLIN, .revents = 0}};
  if (links != nullptr) {
    for (const Link* link : *links) {
      ready.push_back({.fd = link->socket(), .events = link->wanted_events(), .revents = 0});
    }
  }
  (void)poll(ready.data(), ready.size(), timeout_ms);  // woken early, the caller only looks again
}

}  // namespace eplb::fake_nccl
