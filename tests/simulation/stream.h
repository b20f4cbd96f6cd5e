// One stream between a rank and a daemon: in order in each direction, each message late by its own
// latency, until the stream is cut. The two ends learn of the cut at different times.
#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "proto/wire/messages.h"
#include "tests/simulation/context.h"

namespace eplb::simulation {

// A message to one end.
struct StreamEnd {
  std::function<void(const wire::UpMessage&)> on_up;      // the daemon's end
  std::function<void(const wire::DownMessage&)> on_down;  // the rank's end
  std::function<void(const absl::Status&)> on_closed;     // at most once
};

class Stream {
 public:
  // latency: the most of any message; it differs by stream. daemon_place: in the
  // ranks' list.
  Stream(Context* context, absl::Duration latency, int daemon_place)
      : to(daemon_place), context_(*context), latency_(latency) {}

  const int to;
  StreamEnd rank;
  StreamEnd daemon;

  void Up(wire::UpMessage message) {
    Pass(up_, [this, message = std::move(message)] {
      if (daemon.on_up) daemon.on_up(message);
    });
  }
  void Down(wire::DownMessage message) {
    Pass(down_, [this, message = std::move(message)] {
      if (rank.on_down) rank.on_down(message);
    });
  }
  // Behind all that was sent, in order.
  void CloseUp(const absl::Status& status) {
    Pass(up_, [this, status] { Close(daemon, up_, status); });
  }
  void CloseDown(const absl::Status& status) {
    Pass(down_, [this, status] { Close(rank, down_, status); });
  }
  // The rank's end is gone at once, with what was under way to it; the daemon learns of it later.
  void DropRank(absl::Duration daemon_learns) {
    down_.open = false;
    rank = {};
    up_.lossy = true;
    context_.After(daemon_learns, [this] { Close(daemon, up_, absl::UnavailableError("reset")); });
  }
  void DropDaemon(absl::Duration rank_learns) {
    up_.open = false;
    daemon = {};
    down_.lossy = true;
    context_.After(rank_learns, [this] { Close(rank, down_, absl::UnavailableError("reset")); });
  }
  // Loses the messages under way from some message on; no later message arrives.
  void Cut(absl::Duration rank_learns, absl::Duration daemon_learns) {
    up_.lossy = down_.lossy = true;
    context_.After(rank_learns, [this] { Close(rank, down_, absl::UnavailableError("cut")); });
    context_.After(daemon_learns, [this] { Close(daemon, up_, absl::UnavailableError("cut")); });
  }

 private:
  struct Direction {
    absl::Time last = absl::InfinitePast();  // when the newest message arrives
    bool open = true;
    bool lossy = false;  // from some message on nothing arrives
  };

  void Pass(Direction& direction, std::function<void()> what) {
    if (!direction.open || direction.lossy) return;
    direction.last = std::max(direction.last,
                              context_.now() + context_.Between(absl::Milliseconds(1), latency_));
    context_.At(direction.last, [this, &direction, what = std::move(what)] {
      if (direction.lossy && context_.Chance(0.5)) direction.open = false;
      if (direction.open) what();
    });
  }

  static void Close(StreamEnd& end, Direction& direction, const absl::Status& status) {
    direction.open = false;
    const StreamEnd told = std::exchange(end, {});
    if (told.on_closed) told.on_closed(status);
  }

  Context& context_;
  const absl::Duration latency_;
  Direction up_;
  Direction down_;
};

}  // namespace eplb::simulation
