#include "tests/support/fake_nccl/communicator.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <utility>

#include "tests/support/fake_nccl/group_log.h"

namespace eplb::fake_nccl {
namespace {

constexpr int kForEver = -1;

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

Communicator::Communicator(CommunicatorOptions options) : options_(std::move(options)) {
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
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  for (const Fault& fault : options_.faults) {
    const bool here = fault.rank.value_or(options_.address.rank) == options_.address.rank;
    if (here && fault.kind == FaultKind::kSlowAbort) {
      std::this_thread::sleep_for(std::chrono::milliseconds(fault.ms));
    }
  }
  changed_.notify_all();
  stop_writer_ = Descriptor();  // whoever polls the other end sees it
  if (thread_.joinable()) thread_.join();
}

bool Communicator::stopped() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stop_;
}

Outcome Communicator::state() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_;
}

void Communicator::SetState(Outcome outcome) {
  const std::lock_guard<std::mutex> lock(mutex_);
  state_ = std::move(outcome);
}

Outcome Communicator::Submit(std::vector<Operation> operations) {
  const std::string why_not = options_.rules ? WhyNot(operations) : "";
  if (!why_not.empty()) {
    AddToLog(options_.address.rank, "refused " + why_not);
    return {ncclInvalidUsage, why_not};
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_.result == ncclInProgress) {
    AddToLog(options_.address.rank, "refused a group before the end of the call before");
    return {ncclInvalidUsage, "a group before the end of the call before"};
  }
  if (state_.result != ncclSuccess) return state_;
  state_ = {ncclInProgress, ""};
  submitted_ = std::move(operations);
  changed_.notify_all();
  return state_;
}

std::optional<std::vector<Operation>> Communicator::NextGroup() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return stop_ || submitted_; });
  if (stop_) return std::nullopt;
  return std::exchange(submitted_, std::nullopt);
}

void Communicator::Run() {
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
  while (const std::optional<std::vector<Operation>> group = NextGroup()) {
    Outcome outcome = RunGroup(*group);
    const bool failed = outcome.result != ncclSuccess;
    SetState(std::move(outcome));
    if (failed) return;  // the connections stay: peers see an end only at the abort
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
