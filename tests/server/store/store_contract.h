// Promises of every store. store_contract.cc holds the claims; each store instantiates the suite.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "placement/placement.h"
#include "server/store/store.h"
#include "tests/support/messages.h"

namespace eplb::core {

inline bool operator==(const StoredWindow& a, const StoredWindow& b) {
  return a.job == b.job && a.figures == b.figures;
}

}  // namespace eplb::core

namespace eplb {

inline constexpr int32_t kContractMaxEvents = 5;
inline constexpr int32_t kContractMaxOperatorEvents = 3;
inline constexpr int32_t kContractMaxHistory = 4;
inline constexpr int32_t kContractMaxPlans = 3;
inline constexpr int32_t kContractMaxRequests = 6;
inline constexpr int32_t kContractMaxWindows = 3;
inline constexpr int32_t kContractMaxWindowsOfAll = 5;
inline constexpr StoreLimits kContractLimits = {.max_events = kContractMaxEvents,
                                                .max_operator_events = kContractMaxOperatorEvents,
                                                .max_history = kContractMaxHistory,
                                                .max_plans = kContractMaxPlans,
                                                .max_requests = kContractMaxRequests,
                                                .max_windows = kContractMaxWindows,
                                                .max_windows_of_all = kContractMaxWindowsOfAll};

// `make` opens a new, empty store that keeps kContractLimits.
struct StoreContract {
  std::function<std::unique_ptr<Store>()> make;
};

class StoreContractTest : public ::testing::TestWithParam<StoreContract> {
 protected:
  std::unique_ptr<Store> store_ = GetParam().make();
};

// Valid, and not the static layout: experts reversed, some primaries in the higher slot.
Placement ReversedPlacement(int32_t num_layers);
core::StoredJob JobOf(const std::string& name, int64_t version, int32_t num_layers = 2);
v1::JobEvent EventOf(const std::string& job, int64_t version);
// A value in every field.
v1::Plan PlanOf(int64_t number);
// A value in every field that is stored.
StoredWindow WindowOf(const std::string& job, int64_t number);

}  // namespace eplb
