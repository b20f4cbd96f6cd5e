#include "server/rpc/rendezvous.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "placement/digest.h"
#include "proto/wire/messages.h"

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

absl::Status CheckToken(int32_t number, const std::string& token) {
  if (number < 0) {
    return absl::InvalidArgumentError("key is not the number of an exchange, expected 0, 1, 2 ..");
  }
  if (token.size() > wire::kMaxNameLength || (number == 0) != token.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("token has ", token.size(), " characters in exchange ", number,
                     ", expected none in exchange 0 and that of its answer later"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Rendezvous::TokenOf(std::string_view launch_id,
                                const std::map<int32_t, uint64_t>& nonces) {
  std::string text(launch_id);
  for (const auto& [rank, nonce] : nonces) absl::StrAppend(&text, "/", rank, ":", nonce);
  return Sha256(text).Hex();
}

void Rendezvous::Make(const Calls& calls) {
  for (const auto& [done, result] : calls) done(result);
}

absl::Status Rendezvous::Check(const Member& member) const {
  if (member.launch_id.empty()) {
    return absl::InvalidArgumentError(
        "launch_id is empty: two launches of a job could meet; set EPLB_LAUNCH_ID, equal on all "
        "ranks of a launch and different for each launch");
  }
  // They stand in the messages of other ranks.
  EPLB_RETURN_IF_ERROR(wire::CheckPlainName("job", member.job));
  EPLB_RETURN_IF_ERROR(wire::CheckPrintableName("launch_id", member.launch_id));
  EPLB_RETURN_IF_ERROR(CheckToken(member.number, member.token));
  if (member.world_size < 1 || member.world_size > limits_.max_world_size) {
    return absl::InvalidArgumentError(absl::StrCat("world_size is ", member.world_size,
                                                   ", expected 1..", limits_.max_world_size));
  }
  if (member.rank < 0 || member.rank >= member.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank is ", member.rank, ", expected 0..", member.world_size - 1));
  }
  for (const std::string* blob : {&member.blob, &member.previous}) {
    if (blob->size() <= kMaxBlobBytes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("blob has ", blob->size(), " bytes, at most ", kMaxBlobBytes));
  }
  return absl::OkStatus();
}

bool Rendezvous::MeetsAnother(const Member& member) const {
  for (auto it = exchanges_.lower_bound({member.job, member.launch_id, "", 0});
       it != exchanges_.end() && it->first.job == member.job &&
       it->first.launch_id == member.launch_id;
       ++it) {
    const auto& [key, exchange] = *it;
    // Two tokens keep two starts apart; exchange 0 has none yet.
    const bool same_start = !key.token.empty() && key.token == member.token;
    const bool may_meet = exchange.result == nullptr && (key.token.empty() || member.token.empty());
    if (!same_start && !may_meet) continue;
    const auto rank = exchange.ranks.find(member.rank);
    if (rank != exchange.ranks.end() && rank->second.nonce != member.nonce) return true;
  }
  return false;
}

bool Rendezvous::HasOpenExchange(const LaunchKey& launch) const {
  for (auto it = exchanges_.lower_bound({launch.first, launch.second, "", 0});
       it != exchanges_.end() && it->first.job == launch.first &&
       it->first.launch_id == launch.second;
       ++it) {
    if (it->second.result == nullptr) return true;
  }
  return false;
}

absl::Status Rendezvous::TellApart(const Member& member, absl::Time now, Calls* calls) {
  if (const auto refused = refused_tokens_.find(member.token); refused != refused_tokens_.end()) {
    return refused->second;
  }
  const LaunchKey key(member.job, member.launch_id);
  auto launch = launches_.find(key);
  if (launch == launches_.end() && member.token.empty()) {
    if (launches_.size() >= kMaxExchanges) {
      return absl::ResourceExhaustedError(
          absl::StrCat(kMaxExchanges, " launches are starting, come back later"));
    }
    launch = launches_.emplace(key, Launch{}).first;
  }
  // A start that is older than the newest one, or began at an earlier daemon, has a token of its
  // own, which keeps it apart.
  const bool newest =
      launch != launches_.end() && (member.token.empty() || member.token == launch->second.token);
  if (newest) {
    Launch& start = launch->second;
    const auto came = start.nonces.find(member.rank);
    const bool another = came != start.nonces.end() && came->second != member.nonce;
    const bool over = now - start.active >= kQuiet && !HasOpenExchange(key);
    if (member.token.empty() && over && (another || !start.refused.ok())) {
      start = Launch{};
    } else if (!start.refused.ok()) {
      return start.refused;
    } else if (another) {
      return EndStart(member, now, calls);
    }
  }
  if (MeetsAnother(member)) return EndStart(member, now, calls);
  if (newest) {
    launch->second.active = now;
    launch->second.nonces[member.rank] = member.nonce;
  }
  return absl::OkStatus();
}

absl::Status Rendezvous::EndStart(const Member& member, absl::Time now, Calls* calls) {
  absl::Status status = absl::FailedPreconditionError(
      absl::StrCat("two launches share the launch id ", member.launch_id, ": rank ", member.rank,
                   " came from two processes; give each launch its own EPLB_LAUNCH_ID"));
  for (auto it = exchanges_.lower_bound({member.job, member.launch_id, "", 0});
       it != exchanges_.end() && it->first.job == member.job &&
       it->first.launch_id == member.launch_id;) {
    const auto exchange = it++;
    RefuseToken(exchange->first.token, status);
    End(&exchange->second, status, calls);
    Erase(exchange);
  }
  Launch& launch = launches_[{member.job, member.launch_id}];
  RefuseToken(launch.token, status);
  RefuseToken(member.token, status);
  launch.active = now;
  launch.refused = status;
  return status;
}

void Rendezvous::RefuseToken(const std::string& token, const absl::Status& status) {
  if (token.empty() || !refused_tokens_.emplace(token, status).second) return;
  refused_in_order_.push_back(token);
  if (refused_in_order_.size() <= kMaxExchanges) return;
  refused_tokens_.erase(refused_in_order_.front());
  refused_in_order_.pop_front();
}

absl::Status Rendezvous::Admit(const Member& member, absl::Time now,
                               Exchanges::iterator* exchange) {
  const Key key{member.job, member.launch_id, member.token, member.number};
  auto found = exchanges_.find(key);
  if (found != exchanges_.end() && found->second.result != nullptr) {
    const auto rank = found->second.ranks.find(member.rank);
    const bool again = found->second.world_size == member.world_size &&
                       rank != found->second.ranks.end() && rank->second.nonce == member.nonce;
    if (!again) {  // a new launch under the launch id of one that has started
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
  *exchange = found;
  if (found->second.world_size != member.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", member.rank, " says world_size ",
                                                   member.world_size, ", the ranks before it said ",
                                                   found->second.world_size));
  }
  if (found->second.result == nullptr &&
      bytes_ + member.blob.size() + member.previous.size() > limits_.max_bytes) {
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
    Exchanges::iterator exchange = exchanges_.end();
    absl::Status status = Check(member);
    if (status.ok()) status = TellApart(member, now, &calls);
    if (status.ok()) status = Admit(member, now, &exchange);
    if (!status.ok()) {
      calls.emplace_back(std::move(done), status);
    } else if (exchange->second.result != nullptr) {
      calls.emplace_back(std::move(done), exchange->second.result);
    } else {
      Wait(std::move(member), caller, std::move(done), now, exchange, &calls);
    }
  }
  Make(calls);
}

void Rendezvous::Wait(Member member, const void* caller, Done done, absl::Time now,
                      Exchanges::iterator exchange, Calls* calls) {
  Exchange& joined = exchange->second;
  Waiting& waiting = joined.ranks[member.rank];
  if (waiting.caller != nullptr) {
    callers_.erase(waiting.caller);
    calls->emplace_back(std::move(waiting.done),
                        absl::AbortedError(absl::StrCat("rank ", member.rank,
                                                        " came again, this call is replaced")));
  }
  const size_t bytes = member.blob.size() + member.previous.size();
  joined.bytes += bytes - waiting.bytes();
  bytes_ += bytes - waiting.bytes();
  callers_[caller] = {exchange->first, member.rank};
  waiting = {.nonce = member.nonce,
             .caller = caller,
             .done = std::move(done),
             .blob = std::move(member.blob),
             .previous = std::move(member.previous)};
  joined.deadline = std::min(joined.deadline, now + member.patience);
  const Key key = exchange->first;
  if (std::ssize(joined.ranks) < joined.world_size) return CompleteNeighbours(key, calls);
  if (key.number == 0) joined.settled = std::min(joined.settled, now + limits_.settle);
  if (key.number > 0 || joined.settled <= now) Complete(exchange, calls);
}

void Rendezvous::CompleteNeighbours(const Key& joined, Calls* calls) {
  std::vector<Key> before;
  std::vector<Key> behind;
  for (auto it = exchanges_.lower_bound({joined.job, joined.launch_id, "", 0});
       it != exchanges_.end() && it->first.job == joined.job &&
       it->first.launch_id == joined.launch_id;
       ++it) {
    const Key& key = it->first;
    // Exchange 0 has no token yet.
    const bool may_follow = joined.number == 0 || key.token == joined.token;
    const bool may_precede = key.number == 0 || key.token == joined.token;
    if (may_follow && key.number == joined.number + 1) behind.push_back(key);
    if (may_precede && key.number == joined.number - 1) before.push_back(key);
  }
  // Completing one may end and erase others.
  const auto complete = [&](const Key& exchange, const Key& next) {
    const auto found = exchanges_.find(exchange);
    const auto next_found = exchanges_.find(next);
    if (found == exchanges_.end() || next_found == exchanges_.end()) return;
    CompleteFrom(found, next_found, calls);
  };
  for (const Key& next : behind) complete(joined, next);
  for (const Key& exchange : before) complete(exchange, joined);
}

void Rendezvous::CompleteFrom(Exchanges::iterator exchange, Exchanges::const_iterator next,
                              Calls* calls) {
  Exchange& open = exchange->second;
  const Exchange& later = next->second;
  if (open.result != nullptr || open.world_size != later.world_size) return;
  if (std::ssize(open.ranks) + std::ssize(later.ranks) < open.world_size) return;
  std::map<int32_t, uint64_t> nonces;
  for (const auto& [rank, waiting] : open.ranks) nonces[rank] = waiting.nonce;
  for (const auto& [rank, waiting] : later.ranks) nonces.emplace(rank, waiting.nonce);
  if (std::ssize(nonces) != open.world_size) return;
  if (TokenOf(exchange->first.launch_id, nonces) != next->first.token) return;
  for (const auto& [rank, waiting] : later.ranks) {
    if (open.ranks.contains(rank)) continue;
    open.bytes += waiting.previous.size();
    bytes_ += waiting.previous.size();
    open.ranks[rank] = {.nonce = waiting.nonce, .blob = waiting.previous};
  }
  Complete(exchange, calls);
}

void Rendezvous::Complete(Exchanges::iterator exchange, Calls* calls) {
  const Key& key = exchange->first;
  Exchange& complete = exchange->second;
  std::map<int32_t, uint64_t> nonces;
  for (const auto& [rank, waiting] : complete.ranks) nonces[rank] = waiting.nonce;
  auto answer = std::make_shared<Answer>();
  answer->token = TokenOf(key.launch_id, nonces);
  if (key.number > 0 && key.token != answer->token) {
    const absl::Status status = absl::FailedPreconditionError(
        absl::StrCat("the processes of exchange ", key.number, " of launch ", key.launch_id,
                     " are not those that began the start; give each launch its own "
                     "EPLB_LAUNCH_ID"));
    RefuseToken(key.token, status);
    End(&complete, status, calls);
    return Erase(exchange);
  }
  if (key.number == 0) launches_[{key.job, key.launch_id}].token = answer->token;
  size_t forgotten = 0;
  for (auto& [rank, waiting] : complete.ranks) {
    answer->blobs.push_back(std::move(waiting.blob));
    forgotten += waiting.previous.size();
    waiting.blob.clear();
    waiting.previous.clear();
  }
  complete.bytes -= forgotten;
  bytes_ -= forgotten;
  complete.result = std::move(answer);
  End(&complete, absl::OkStatus(), calls);
}

bool Rendezvous::Leave(const void* caller) {
  const std::lock_guard lock(mutex_);
  const auto found = callers_.find(caller);
  if (found == callers_.end()) return false;
  const auto exchange = exchanges_.find(found->second.first);
  const auto rank = exchange->second.ranks.find(found->second.second);
  exchange->second.bytes -= rank->second.bytes();
  bytes_ -= rank->second.bytes();
  exchange->second.ranks.erase(rank);
  exchange->second.settled = absl::InfiniteFuture();  // from the moment that all are there again
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
      const bool complete = std::ssize(exchange.ranks) == exchange.world_size;
      if (exchange.result == nullptr && complete &&
          now >= std::min(exchange.settled, exchange.deadline)) {
        Complete(current, &calls);
        continue;
      }
      if (now < exchange.deadline) continue;
      std::vector<int32_t> missing;
      for (int32_t rank = 0; rank < exchange.world_size; ++rank) {
        if (!exchange.ranks.contains(rank)) missing.push_back(rank);
      }
      End(&exchange,
          absl::DeadlineExceededError(
              absl::StrCat(MissingRanks(exchange.world_size, missing), " did not come to exchange ",
                           current->first.number, " of job \"", current->first.job, "\", launch \"",
                           current->first.launch_id, "\", within ",
                           absl::FormatDuration(exchange.deadline - exchange.began),
                           "; ranks meet under one launch id (EPLB_LAUNCH_ID, else the "
                           "launcher's)")),
          &calls);
      Erase(current);
    }
    std::erase_if(launches_, [&](const auto& launch) {
      return now - launch.second.active >= kQuiet && !HasOpenExchange(launch.first);
    });
  }
  Make(calls);
}

void Rendezvous::FailAll(const absl::Status& status) {
  Calls calls;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [key, exchange] : exchanges_) End(&exchange, status, &calls);
    exchanges_.clear();
    launches_.clear();
    bytes_ = 0;
  }
  Make(calls);
}

// status: OK for those of a complete exchange, who get its result.
void Rendezvous::End(Exchange* exchange, const absl::Status& status, Calls* calls) {
  for (auto& [rank, waiting] : exchange->ranks) {
    if (waiting.caller == nullptr) continue;
    callers_.erase(waiting.caller);
    waiting.caller = nullptr;
    Done done = std::exchange(waiting.done, nullptr);
    if (status.ok()) {
      calls->emplace_back(std::move(done), exchange->result);
    } else {
      calls->emplace_back(std::move(done), status);
    }
  }
}

void Rendezvous::Erase(Exchanges::iterator exchange) {
  bytes_ -= exchange->second.bytes;
  exchanges_.erase(exchange);
}

}  // namespace eplb
