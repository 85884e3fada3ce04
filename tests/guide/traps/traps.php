<?php
// Clients for PHP as they come: php traps.php LIBRARY PORT MODE. tests/guide/traps.rs says what the modes are.

[, $library, $port, $mode] = $argv;
const WAIT = ['LOCK.ACQUIRE', 'traps', 'client', 'PX', '600000', 'BLOCK', '600000'];
const NOTHING = ['LOCK.ACQUIRE', 'traps', 'other'];
const ERROR = ['LOCK.ACQUIRE', 'traps', 'other', 'PX', '0'];

if ($library === 'phpredis') {
    $client = new Redis();
    $client->connect('127.0.0.1', (int) $port);
    $send = fn (array $words) => $client->rawCommand(...$words);
    $version = phpversion('redis');
} else {
    require 'Predis/Autoloader.php';
    Predis\Autoloader::register();
    $client = new Predis\Client(['host' => '127.0.0.1', 'port' => $port]);
    $send = fn (array $words) => $client->executeCommand(Predis\Command\RawCommand::create(...$words));
    $version = Predis\Client::VERSION;
}

// The reply is there before anything is said of it: what comes may be an exception.
$say = function (string $what, array $words) use ($send) {
    $reply = var_export($send($words), true);
    echo "$what $reply\n";
};

try {
    if ($mode === 'wait') {
        $say('reply', WAIT);
    } else {
        echo "version $version\n";
        $say('null', NOTHING);
        $say('error', ERROR);
    }
} catch (Exception $error) {
    echo 'error ', get_class($error), ' ', $error->getMessage(), "\n";
}
