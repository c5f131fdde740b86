/* A wall clock that is wrong by as many nanoseconds as the file FAULTS_CLOCK says (a signed 64-bit number, mapped into memory, so a
 * change counts at once). The monotonic clocks are unchanged. Preloaded with LD_PRELOAD: it reaches librdkafka, too, which waits
 * for absolute times of this clock. Those are shifted back before they reach the kernel. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL
/* Shorter than any real time since 1970 that a program would wait for: a relative wait would be left as it is. */
#define LONG_AGO_S 500000000

static volatile int64_t none = 0;

static int64_t shift_ns(void) {
    static volatile int64_t *shift = NULL;
    if (shift == NULL) {
        const char *path = getenv("FAULTS_CLOCK");
        int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
        void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0) close(file);
        shift = mapped == MAP_FAILED ? &none : (volatile int64_t *)mapped;
    }
    return *shift;
}

static void add(struct timespec *time, int64_t ns) {
    int64_t sum = (int64_t)time->tv_sec * NS + time->tv_nsec + ns;
    time->tv_sec = sum / NS;
    time->tv_nsec = sum % NS;
}

static struct timespec real(const struct timespec *until) {
    struct timespec at = *until;
    if (at.tv_sec > LONG_AGO_S) add(&at, -shift_ns());
    return at;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*next)(clockid_t, struct timespec *);
    if (next == NULL) next = dlsym(RTLD_NEXT, "clock_gettime");
    int result = next(clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) add(time, shift_ns());
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL) *out = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *time, int base) {
    clock_gettime(CLOCK_REALTIME, time);
    return base;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (next == NULL) next = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (next == NULL) next = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec at = real(until);
    return next(cond, mutex, &at);
}

int cnd_timedwait(cnd_t *restrict cond, mtx_t *restrict mutex, const struct timespec *restrict until) {
    static int (*next)(cnd_t *, mtx_t *, const struct timespec *);
    if (next == NULL) next = dlsym(RTLD_NEXT, "cnd_timedwait");
    struct timespec at = real(until);
    return next(cond, mutex, &at);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    static int (*next)(sem_t *, const struct timespec *);
    if (next == NULL) next = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec at = real(until);
    return next(semaphore, &at);
}
