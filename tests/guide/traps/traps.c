/* hiredis as it comes: traps LIBRARY PORT MODE. tests/guide/traps.rs says what the modes are. */

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say(const char *what, redisContext *client, const char *command)
{
    redisReply *reply = redisCommand(client, command);
    if (!reply)
        printf("error NULL %d %s\n", client->err, client->errstr);
    else if (reply->type == REDIS_REPLY_ERROR)
        printf("error REDIS_REPLY_ERROR %s\n", reply->str);
    else
        printf("%s %s\n", what, reply->type == REDIS_REPLY_NIL ? "REDIS_REPLY_NIL" : "other");
    freeReplyObject(reply);
}

int main(int count, char **words)
{
    (void)count;
    redisContext *client = redisConnect("127.0.0.1", atoi(words[2]));
    if (!strcmp(words[3], "wait")) {
        say("reply", client, "LOCK.ACQUIRE traps client PX 600000 BLOCK 600000");
    } else {
        printf("version %d.%d.%d\n", HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
        say("null", client, "LOCK.ACQUIRE traps other");
        say("error", client, "LOCK.ACQUIRE traps other PX 0");
    }
    redisFree(client);
    return 0;
}
