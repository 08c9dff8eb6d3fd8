// SPDX-License-Identifier: Apache-2.0
// Preloaded, the clock of the date jumps a day back and forth from one call to the next; the monotonic clock does not.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t jump(void) {
  static atomic_long calls;
  const long call = atomic_fetch_add(&calls, 1);
  return call % 3 == 0 ? 0 : call % 3 == 1 ? 86400 : -86400;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  const long result = syscall(SYS_clock_gettime, clock, now);
  if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += jump();
  return (int)result;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  struct timespec exact;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &exact) != 0) return -1;
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
