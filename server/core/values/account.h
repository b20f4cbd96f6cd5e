// Time that a job has saved: sums over its measured load windows, and the time of a token.
#pragma once

#include <cstdint>
#include <string>

#include "proto/wire/messages.h"

namespace eplb::core {

// A load window as a sample of the time of a step. Figures are those of one step, summed over
// layers.
struct StepSample {
  int64_t steps = 0;  // steps in the window
  double seconds = 0;
  double peak_tokens = 0;  // load of the fullest GPU
  double mean_tokens = 0;  // load of the mean GPU
};

// Sums of measured figures of a job: windows and tokens of its current run, pauses of all runs.
struct Account {
  int64_t windows = 0;           // measured windows of the run whose peaks without EPLB are known
  double saved_peak_tokens = 0;  // sum over them of peak_load_without_eplb - peak_load
  double pause_seconds = 0;      // sum over committed chunks of the longest pause of any rank
  double earlier_pauses = 0;     // the part from before the current run or the daemon's start
  wire::SavedTime saved = {};
};

// Mean of the newest windows, with which the next one is compared: what changes slowly, such as the
// length of sequences, is in both.
struct StepMean {
  int64_t windows = 0;
  StepSample mean = {};
};

// Adds what a window shows: by how much the time of a step and the tokens of the fullest GPUs
// differ from the mean of the windows before, of which at most kMeanOf count. The first one is that
// mean.
inline constexpr int64_t kMeanOf = 16;
void AddSample(const StepSample& sample, StepMean& before, wire::SavedTime& sums);

// Time that one token more on the fullest GPU adds to a step.
struct TokenTime {
  // A price that is not given is the mean of two, each weighted by its certainty: the slope of the
  // step time over the tokens of the fullest GPU, at equal tokens in all; and the assumption that
  // experts take half of a step, give or take that half. So no sample changes the price at once.
  // kMeasured: its error is at most half of it. kAssumed: the error is larger.
  enum class Source { kNone, kGiven, kMeasured, kAssumed };
  Source source = Source::kNone;
  double seconds = 0;
  // The mean of the slope's two standard errors and of the assumption's half step, with the same
  // weights; as a fraction of `seconds`.
  double error = 0;
  double assumption = 0;  // weight of the assumption [0, 1]
};
inline constexpr double kExpertsShareOfStep = 0.5;

// step_seconds of `sums` is a sum over windows too, of the time of their steps.
TokenTime TokenTimeOf(const wire::SavedTime& sums);

// Pauses that count against the savings: those of the current run only if its tokens have a price.
double CountedPauses(const Account& account);

// Seconds that the job saved over all its runs, before pauses are subtracted.
double GrossSeconds(const Account& account);

// True if part of these seconds rests on an assumed time of a token.
bool IsAssumed(const Account& account);

// Ends the account of a run: its savings are kept in seconds, its other sums begin anew. Without
// a price of its tokens, its pauses are dropped as well.
void CloseRun(Account& account);

// "a token costs 1.2 us +- 9 %, measured from the step times of 41 windows".
std::string TokenTimeText(const wire::SavedTime& sums);

}  // namespace eplb::core
