#include "server/rpc/rendezvous.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "placement/status_macros.h"

namespace eplb {
namespace {

constexpr std::ptrdiff_t kMaxNamedRanks = 16;

std::string MissingRanks(int32_t world_size, const std::vector<int32_t>& missing) {
  const std::ptrdiff_t named = std::min(std::ssize(missing), kMaxNamedRanks);
  std::string text = missing.size() == 1 ? "rank " : "ranks ";
  absl::StrAppend(&text, absl::StrJoin(missing.begin(), missing.begin() + named, ", "));
  if (named < std::ssize(missing))
    absl::StrAppend(&text, " and ", std::ssize(missing) - named, " more");
  absl::StrAppend(&text, " of ", world_size);
  return text;
}

}  // namespace

void Rendezvous::Make(const Calls& calls) {
  for (const auto& [done, result] : calls) done(result);
}

absl::Status Rendezvous::Check(const Member& member) const {
  for (const auto& [field, name] : {std::pair("job", &member.job), std::pair("key", &member.key)}) {
    if (name->empty() || name->size() > kMaxNameLength) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, " has ", name->size(), " characters, expected 1..", kMaxNameLength));
    }
  }
  if (member.world_size < 1 || member.world_size > limits_.max_world_size) {
    return absl::InvalidArgumentError(absl::StrCat("world_size is ", member.world_size,
                                                   ", expected 1..", limits_.max_world_size));
  }
  if (member.rank < 0 || member.rank >= member.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank is ", member.rank, ", expected 0..", member.world_size - 1));
  }
  if (member.blob.size() > kMaxBlobBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("blob has ", member.blob.size(), " bytes, at most ", kMaxBlobBytes));
  }
  return absl::OkStatus();
}

absl::Status Rendezvous::Admit(const Member& member, absl::Time now, Exchange** exchange) {
  const Key key(member.job, member.key);
  auto found = exchanges_.find(key);
  if (found != exchanges_.end() && found->second.result != nullptr) {
    const auto rank = found->second.ranks.find(member.rank);
    const bool again = found->second.world_size == member.world_size &&
                       rank != found->second.ranks.end() && rank->second.nonce == member.nonce;
    if (!again) {  // a new launch under the old name
      Erase(found);
      found = exchanges_.end();
    }
  }
  if (found == exchanges_.end()) {
    if (exchanges_.size() >= kMaxExchanges) {
      return absl::ResourceExhaustedError(
          absl::StrCat(kMaxExchanges, " exchanges are open, come back later"));
    }
    found = exchanges_.emplace(key, Exchange{}).first;
    found->second.world_size = member.world_size;
    found->second.began = now;
    found->second.deadline = now + limits_.deadline;
  }
  *exchange = &found->second;
  if (found->second.world_size != member.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", member.rank, " says world_size ",
                                                   member.world_size, ", the ranks before it said ",
                                                   found->second.world_size));
  }
  if (found->second.result == nullptr && bytes_ + member.blob.size() > limits_.max_bytes) {
    if (found->second.ranks.empty()) Erase(found);
    return absl::ResourceExhaustedError(absl::StrCat("the blobs of all exchanges may have ",
                                                     limits_.max_bytes, " bytes, come back later"));
  }
  return absl::OkStatus();
}

void Rendezvous::Join(Member member, const void* caller, Done done, absl::Time now) {
  Calls calls;
  {
    const std::lock_guard lock(mutex_);
    Exchange* exchange = nullptr;
    absl::Status status = Check(member);
    if (status.ok()) status = Admit(member, now, &exchange);
    if (!status.ok()) {
      calls.emplace_back(std::move(done), status);
    } else if (exchange->result != nullptr) {
      calls.emplace_back(std::move(done), exchange->result);
    } else {
      Waiting& waiting = exchange->ranks[member.rank];
      if (waiting.caller != nullptr) {
        callers_.erase(waiting.caller);
        const bool same = waiting.nonce == member.nonce;
        calls.emplace_back(
            std::move(waiting.done),
            absl::AbortedError(absl::StrCat(
                same ? "" : "another process came as ", "rank ", member.rank,
                same ? " came again, this call is replaced" : ", which replaces this one")));
      }
      exchange->bytes += member.blob.size() - waiting.blob.size();
      bytes_ += member.blob.size() - waiting.blob.size();
      callers_[caller] = {{member.job, member.key}, member.rank};
      waiting = {.nonce = member.nonce,
                 .caller = caller,
                 .done = std::move(done),
                 .blob = std::move(member.blob)};
      exchange->deadline = std::min(exchange->deadline, now + member.patience);
      if (std::ssize(exchange->ranks) == exchange->world_size) Complete(exchange, &calls);
    }
  }
  Make(calls);
}

void Rendezvous::Complete(Exchange* exchange, Calls* calls) {
  auto blobs = std::make_shared<std::vector<std::string>>();
  for (auto& [rank, waiting] : exchange->ranks) blobs->push_back(std::move(waiting.blob));
  exchange->result = std::move(blobs);
  for (auto& [rank, waiting] : exchange->ranks) {
    callers_.erase(waiting.caller);
    waiting.caller = nullptr;
    waiting.blob.clear();
    calls->emplace_back(std::exchange(waiting.done, nullptr), exchange->result);
  }
}

bool Rendezvous::Leave(const void* caller) {
  const std::lock_guard lock(mutex_);
  const auto found = callers_.find(caller);
  if (found == callers_.end()) return false;
  const auto exchange = exchanges_.find(found->second.first);
  const auto rank = exchange->second.ranks.find(found->second.second);
  exchange->second.bytes -= rank->second.blob.size();
  bytes_ -= rank->second.blob.size();
  exchange->second.ranks.erase(rank);
  callers_.erase(found);
  if (exchange->second.ranks.empty()) exchanges_.erase(exchange);
  return true;
}

void Rendezvous::Expire(absl::Time now) {
  Calls calls;
  {
    const std::lock_guard lock(mutex_);
    for (auto it = exchanges_.begin(); it != exchanges_.end();) {
      const auto current = it++;
      Exchange& exchange = current->second;
      if (now < exchange.deadline) continue;
      std::vector<int32_t> missing;
      for (int32_t rank = 0; rank < exchange.world_size; ++rank) {
        if (!exchange.ranks.contains(rank)) missing.push_back(rank);
      }
      End(&exchange,
          absl::DeadlineExceededError(absl::StrCat(
              MissingRanks(exchange.world_size, missing), " did not come to exchange \"",
              current->first.second, "\" of job \"", current->first.first, "\" within ",
              absl::FormatDuration(exchange.deadline - exchange.began))),
          &calls);
      Erase(current);
    }
  }
  Make(calls);
}

void Rendezvous::FailAll(const absl::Status& status) {
  Calls calls;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [key, exchange] : exchanges_) End(&exchange, status, &calls);
    exchanges_.clear();
    bytes_ = 0;
  }
  Make(calls);
}

void Rendezvous::End(Exchange* exchange, const absl::Status& status, Calls* calls) {
  for (auto& [rank, waiting] : exchange->ranks) {
    if (waiting.caller == nullptr) continue;
    callers_.erase(waiting.caller);
    waiting.caller = nullptr;
    calls->emplace_back(std::exchange(waiting.done, nullptr), status);
  }
}

void Rendezvous::Erase(std::map<Key, Exchange>::iterator exchange) {
  bytes_ -= exchange->second.bytes;
  exchanges_.erase(exchange);
}

}  // namespace eplb
