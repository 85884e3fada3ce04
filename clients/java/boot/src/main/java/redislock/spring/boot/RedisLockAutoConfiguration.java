package redislock.spring.boot;

import io.lettuce.core.RedisURI;
import io.micrometer.core.instrument.MeterRegistry;
import net.javacrumbs.shedlock.core.LockProvider;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.health.autoconfigure.contributor.ConditionalOnEnabledHealthIndicator;
import org.springframework.boot.health.contributor.HealthIndicator;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.integration.support.locks.LockRegistry;
import redislock.LockListener;
import redislock.RedisLocks;
import redislock.lettuce.LettuceTransport;
import redislock.micrometer.LockMeters;
import redislock.shedlock.RedisLockProvider;
import redislock.spi.Transport;
import redislock.spring.RedisLockRegistry;

/**
 * Makes a {@link RedisLocks} for the application, and closes it with the application. Where their libraries are there it makes
 * a provider for ShedLock, a registry for Spring Integration, figures and health. A bean of the application comes first. All
 * beans of type {@link LockListener} are told.
 */
@AutoConfiguration(
        afterName = {
            "org.springframework.boot.micrometer.metrics.autoconfigure.MetricsAutoConfiguration",
            "org.springframework.boot.micrometer.metrics.autoconfigure.CompositeMeterRegistryAutoConfiguration"
        })
@EnableConfigurationProperties(RedisLockProperties.class)
public final class RedisLockAutoConfiguration {
    /** Has no state. */
    public RedisLockAutoConfiguration() {}

    @Bean(destroyMethod = "")
    @ConditionalOnMissingBean
    static Transport redisLockTransport(RedisLockProperties settings) {
        return LettuceTransport.of(RedisURI.create(settings.url()));
    }

    @Bean(destroyMethod = "close")
    @ConditionalOnMissingBean
    static RedisLocks redisLocks(Transport transport, RedisLockProperties settings, ObjectProvider<LockListener> listeners) {
        return RedisLocks.builder(transport)
                .lease(settings.lease())
                .keyPrefix(settings.keyPrefix())
                .maxBlockingConnections(settings.maxBlockingConnections())
                .listener(new LockListeners(listeners.orderedStream().toList()))
                .build();
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass({RedisLockRegistry.class, LockRegistry.class})
    static class Integration {
        @Bean
        @ConditionalOnMissingBean(LockRegistry.class)
        RedisLockRegistry redisLockRegistry(RedisLocks locks) {
            return new RedisLockRegistry(locks, "registry:");
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass({RedisLockProvider.class, LockProvider.class})
    static class ShedLock {
        @Bean
        @ConditionalOnMissingBean(LockProvider.class)
        RedisLockProvider redisLockProvider(RedisLocks locks) {
            return new RedisLockProvider(locks);
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass({LockMeters.class, MeterRegistry.class})
    static class Figures {
        @Bean
        @ConditionalOnBean(MeterRegistry.class)
        @ConditionalOnMissingBean
        LockMeters redisLockMeters(MeterRegistry registry, RedisLockProperties settings) {
            return new LockMeters(registry, settings.name());
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass({HealthIndicator.class, ConditionalOnEnabledHealthIndicator.class})
    static class Health {
        @Bean
        @ConditionalOnEnabledHealthIndicator("redisLock")
        @ConditionalOnMissingBean(name = "redisLockHealthIndicator")
        HealthIndicator redisLockHealthIndicator(RedisLocks locks) {
            return new LockHealth(locks);
        }
    }
}
