#include "tests/support/cuda_emulator/clock.h"

#include <algorithm>

namespace eplb::cuda_emulator {
namespace {

uint32_t last_time = 0;  // each synchronisation begins a new time

// The past that the last store to a word and the updates since have released.
std::map<const void*, SharedPast>& Released() {
  static auto* const released = new std::map<const void*, SharedPast>();
  return *released;
}

void RaiseTo(LaneTimes& lanes, const LaneTimes& other) {
  for (size_t i = 0; i < lanes.size(); ++i) lanes[i] = std::max(lanes[i], other[i]);
}

SharedPast Sum(const SharedPast& a, const SharedPast& b) {
  if (a == nullptr || a == b) return b;
  if (b == nullptr) return a;
  auto sum = std::make_shared<Past>(*a);
  sum->Add(*b);
  return sum;
}

bool Releases(Order order) { return order == Order::kRelease || order == Order::kAcquireRelease; }
bool Acquires(Order order) { return order == Order::kAcquire || order == Order::kAcquireRelease; }

}  // namespace

bool Past::Has(const Moment& moment) const {
  const auto barrier = barriers.find(moment.block);
  if (barrier != barriers.end() && moment.time < barrier->second) return true;
  const auto warp = warps.find({moment.block, moment.thread / kClockLanes});
  return warp != warps.end() && moment.time <= warp->second[moment.thread % kClockLanes];
}

void Past::Add(const Past& other) {
  for (const auto& [key, lanes] : other.warps) RaiseTo(warps[key], lanes);
  for (const auto& [block, time] : other.barriers) {
    barriers[block] = std::max(barriers[block], time);
  }
  predecessors = predecessors || other.predecessors;
}

bool Clock::Knows(const Moment& moment) const {
  if (moment.block == now_.block) {
    if (moment.time < barrier_ || moment.thread == now_.thread) return true;
    const bool in_warp = moment.thread / kClockLanes == warp();
    if (in_warp && moment.time <= lanes_[moment.thread % kClockLanes]) return true;
  } else if (IsOfEarlierLaunch(moment.block)) {
    return !MayStillRun(moment.block, waited_);
  }
  return others_ != nullptr && others_->Has(moment);
}

void Clock::Start(uint32_t block, uint16_t thread) {
  *this = Clock();
  now_ = {.block = block, .time = ++last_time, .thread = thread};
}

SharedPast Clock::Release() {
  auto past = others_ == nullptr ? std::make_shared<Past>() : std::make_shared<Past>(*others_);
  LaneTimes& lanes = past->warps[{now_.block, warp()}];
  RaiseTo(lanes, lanes_);
  lanes[lane()] = now_.time;
  past->barriers[now_.block] = std::max(past->barriers[now_.block], barrier_);
  past->predecessors = waited_;
  now_.time = ++last_time;
  return past;
}

void Clock::Acquire(const SharedPast& past) {
  if (past == nullptr) return;
  others_ = Sum(others_, past);
  waited_ = waited_ || past->predecessors;
}

void Clock::Fence() {
  Acquire(std::exchange(loaded_, nullptr));
  fenced_ = Release();
}

void Clock::Load(const void* address, Order order) {
  const auto found = Released().find(address);
  if (found == Released().end()) return;
  if (Acquires(order)) {
    Acquire(found->second);
  } else {
    loaded_ = Sum(loaded_, found->second);
  }
}

void Clock::Store(const void* address, Order order) {
  if (Releases(order)) {
    Released()[address] = Release();
  } else if (fenced_ != nullptr) {
    Released()[address] = fenced_;
  } else if (!Released().empty()) {
    Released().erase(address);
  }
}

void Clock::Update(const void* address, Order order) {
  Load(address, order);
  if (!Releases(order) && fenced_ == nullptr) return;  // the word keeps what it has released
  SharedPast& released = Released()[address];
  released = Sum(released, Releases(order) ? Release() : fenced_);
}

void Clock::JoinOthers(std::span<Clock* const> clocks) {
  SharedPast others;
  bool waited = false;
  for (const Clock* clock : clocks) {
    others = Sum(others, clock->others_);
    waited = waited || clock->waited_;
  }
  for (Clock* clock : clocks) {
    clock->others_ = others;
    clock->waited_ = waited;
  }
}

void Clock::JoinLanes(std::span<Clock* const> clocks) {
  JoinOthers(clocks);
  LaneTimes lanes{};
  for (const Clock* clock : clocks) RaiseTo(lanes, clock->lanes_);
  for (const Clock* clock : clocks) lanes[clock->lane()] = clock->now_.time;
  ++last_time;
  for (Clock* clock : clocks) {
    clock->lanes_ = lanes;
    clock->now_.time = last_time;
  }
}

void Clock::JoinBlock(std::span<Clock* const> clocks) {
  JoinOthers(clocks);
  ++last_time;
  for (Clock* clock : clocks) {
    clock->barrier_ = last_time;
    clock->now_.time = last_time;
  }
}

void ForgetReleases() { Released().clear(); }

}  // namespace eplb::cuda_emulator
