/* Preloaded into a process. Below a directory "nfs" each change is made and then asked for again, as NFS does whose
   answer was lost: what counts is the second answer. So it is below "nfs-without-links", which refuses hard links. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINKS_ARE_REFUSED(path) (strstr(path, "/nfs-without-links/") != NULL)
#define ANSWERS_ARE_LOST(path) (strstr(path, "/nfs/") != NULL || LINKS_ARE_REFUSED(path))
#define CHANGE(name, path, ...) \
    __typeof__(&name) change = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
    return ANSWERS_ARE_LOST(path) ? change(__VA_ARGS__), change(__VA_ARGS__) : change(__VA_ARGS__)

int link(const char *from, const char *to)
{
    if (LINKS_ARE_REFUSED(to)) {
        errno = EPERM;
        return -1;
    }
    CHANGE(link, to, from, to);
}

int rename(const char *from, const char *to) { CHANGE(rename, to, from, to); }
int unlink(const char *path) { CHANGE(unlink, path, path); }
int mkdir(const char *path, mode_t mode) { CHANGE(mkdir, path, path, mode); }
int rmdir(const char *path) { CHANGE(rmdir, path, path); }
